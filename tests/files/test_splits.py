"""Splits of any size have the records of whole files, in order; errors name the file and the line."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_reads import reader, rows, values, written
from hypothesis import example, given
from hypothesis import strategies as st

from distlog.core.errors import InvalidRecordError
from distlog.core.files.file_reader import pack, runs_to_repeat

SIZES = st.integers(1, 40)
TEXTS = st.lists(st.text(st.sampled_from('ab,"\n\r é€𝄞1'), max_size=30), min_size=1, max_size=3)


def same_by_any_splits(texts: list[str], size: int, tasks: int, form: str, **fields: str) -> None:
    with TemporaryDirectory() as folder:
        written(Path(folder), **{f"{number}": text for number, text in enumerate(texts)})
        options = {"format": form, "bad_lines": "skip", **fields}
        assert rows([folder], size, tasks, **options) == rows([folder], None, 1, **options)


@given(TEXTS, SIZES, st.integers(1, 9))
@example(["a\r\nb\r\n", "€uro\nno end"], 2, 9)
@example(["", "\n", "\n\n", "\r\n"], 1, 3)
def test_splits_of_text_have_all_lines(texts: list[str], size: int, tasks: int) -> None:
    same_by_any_splits(texts, size, tasks, "text")


@given(TEXTS, SIZES, st.integers(1, 9))
def test_splits_of_json_have_all_lines(texts: list[str], size: int, tasks: int) -> None:
    lines = ["\n".join(json.dumps({"k": part}) for part in text.split("\n")) + text[-1:] for text in texts]
    same_by_any_splits(lines, size, tasks, "jsonl", key="k")


@given(TEXTS, SIZES, st.integers(1, 9))
@example(['1,"a\n2,b\n3,c\n"\n4,d\n'], 3, 9)
@example(['1,"a\n' + '2,"b"\n' * 5 + '3,c"\n4,d', '5,e\n"'], 4, 9)
@example(["1,a"], 1, 9)
def test_splits_of_csv_have_all_rows(texts: list[str], size: int, tasks: int) -> None:
    same_by_any_splits([f"k,v\n{text}" for text in texts], size, tasks, "csv", key="k", value="v")


@pytest.mark.parametrize("size", [None, 100, 5000])
def test_row_groups_of_parquet_are_split_and_keep_their_order(tmp_path: Path, size: int | None) -> None:
    for number in range(3):
        table = pa.table({"n": list(range(1000 * number, 1000 * number + 1000))})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=100 * (number + 1))
    source = reader()
    splits = source.splits(source.files([str(tmp_path)]), size)
    assert len(splits) == {None: 3, 100: 19, 5000: 6}.get(size, 0) or size == 5000
    assert values([tmp_path], size, 4, value="n") == [b"%d" % number for number in range(3000)]


@pytest.mark.parametrize("grows", [True, False])
@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "gz"])
def test_records_keep_the_order_of_files_of_any_size(tmp_path: Path, grows: bool, form: str) -> None:
    expected = []
    for number in range(8):
        count = 50 * (number + 1 if grows else 8 - number)
        lines = [f"{number}-{row}" for row in range(count)]
        expected += lines
        text = {"jsonl": "".join(f'{{"v": "{line}"}}\n' for line in lines), "csv": "v\n" + "\n".join(lines)}
        content = text.get(form, "\n".join(lines)).encode()
        (tmp_path / f"day-{number}").write_bytes(gzip.compress(content) if form == "gz" else content)
    options = {"format": "text" if form == "gz" else form, **({"value": "v"} if form in ("jsonl", "csv") else {})}
    assert values([tmp_path], 300, 5, **options) == [line.encode() for line in expected]


def test_runs_are_consecutive_splits_of_about_the_same_work(tmp_path: Path) -> None:
    written(tmp_path, a=b"x\n" * 5_000_000, **{f"b{number:03}": b"y\n" for number in range(100)})
    source = reader()
    splits = source.splits(source.files([str(tmp_path)]), 1 << 20)
    for tasks in (1, 3, 8, 1000):
        runs = pack(splits, tasks)
        assert [split for run in runs for split in run] == splits
        assert len(runs) <= tasks
    work = [sum(split.length + (128 << 10) for split in run) for run in pack(splits, 4)]
    assert max(work) < 2 * min(work)


def test_a_reader_its_splits_and_its_reports_pickle_small(tmp_path: Path) -> None:
    written(tmp_path, a="1\n2\n")
    source = reader(bad_lines="skip")
    splits = pickle.loads(pickle.dumps(source.splits(source.files([str(tmp_path)]))))
    assert len(pickle.dumps(splits)) < 1000
    reading = pickle.loads(pickle.dumps(source)).read(splits)
    assert [part.records.num_rows for part in reading] == [2]
    assert sum(split.records for split in pickle.loads(pickle.dumps(reading.report)).splits) == 2


@pytest.mark.parametrize("size", [None, 40])
def test_a_bad_line_is_named_by_its_file_and_number(tmp_path: Path, size: int | None) -> None:
    lines = [*(f'{{"n": {number}}}' for number in range(50)), "[7]", '{"n": 1}']
    (path,) = written(tmp_path, a__jsonl="\n".join(lines))
    with pytest.raises(InvalidRecordError, match="the line must be an object") as raised:
        values([path], size)
    assert (raised.value.details["file"], raised.value.details["line"]) == (str(path), 51)


def test_a_bad_row_of_csv_in_a_later_split_is_reported(tmp_path: Path) -> None:
    good, wrong = ["k,v", *(f"{number},x" for number in range(50))], ["7"]
    (path,) = written(tmp_path, a__csv="\n".join([*good, *wrong, "8,y"]))
    source = reader()
    runs = pack(source.splits(source.files([str(path)]), 20), 99)
    readings = [source.read(run) for run in runs]
    assert sum(part.records.num_rows for reading in readings for part in reading) >= 50
    with pytest.raises(InvalidRecordError, match="the row has 1 fields, not 2") as raised:
        runs_to_repeat(runs, [reading.report for reading in readings])
    assert raised.value.details["line"] == 52


def test_files_that_are_small_are_read_together_and_their_lines_are_named(tmp_path: Path) -> None:
    written(tmp_path, **{f"{number:04}__jsonl": f'{{"n": {number}}}\n' * 2 for number in range(1000)})
    source = reader(key="n")
    reading = source.read(source.splits(source.files([str(tmp_path)])))
    parts = list(reading)
    assert (len(parts), sum(split.records for split in reading.report.splits)) == (1, 2000)
    assert parts[0].location(1001) == {"file": str(tmp_path / "0500.jsonl"), "line": 2}
    (tmp_path / "0700.jsonl").write_text('{"n": 1}\n\n{"n"\n')
    with pytest.raises(InvalidRecordError, match="not a record") as raised:
        values([tmp_path])
    assert raised.value.details == {"file": str(tmp_path / "0700.jsonl"), "line": 3}


def test_an_unknown_field_in_all_files_fails(tmp_path: Path) -> None:
    written(tmp_path, a__jsonl='{"user": 1}\n' * 9, b__jsonl='{"usr": 2}\n')
    assert [row[0] for row in rows([tmp_path], 20, 9, key="usr")] == [None] * 9 + [b"2"]
    with pytest.raises(InvalidRecordError, match="no line has a field use; the lines have user, usr"):
        rows([tmp_path], 20, 9, key="use")


def test_csv_of_a_header_alone_and_empty_files_have_no_records(tmp_path: Path) -> None:
    written(tmp_path, a__csv="k,v", b__csv="k,v\n", c__csv="", d__csv="k,v\n1,2\n", e__csv="v,k\n3,4")
    assert rows([tmp_path], key="k", value="v") == [(b"1", b"2", None), (b"4", b"3", None)]


def test_a_column_missing_in_one_file_fails_with_the_file(tmp_path: Path) -> None:
    a, b = written(tmp_path, a__csv="k,v\n1,2\n", b__csv="key,v\n1,2\n")
    with pytest.raises(InvalidRecordError, match="no column k; it has key, v") as raised:
        rows([a, b], key="k")
    assert raised.value.details["file"] == str(b)


def test_an_endless_line_fails(tmp_path: Path) -> None:
    (path,) = written(tmp_path, a__log=b"short\n" + b"x" * (70 << 20))
    with pytest.raises(InvalidRecordError, match="longer than 64 MiB") as raised:
        values([path])
    assert raised.value.details == {"file": str(path), "position": 6}

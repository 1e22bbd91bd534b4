"""Arrow columns from Python and numpy and back, without pandas: the results of Arrow's own conversions."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from distlog.core.arrays import (
    booleans,
    column_of,
    flags_of,
    integers,
    java_text,
    numbers_of,
    scalar_of,
    table_of_rows,
    texts,
)
from distlog.core.format.record_batch import HEADERS_TYPE

# the work of a command and of each of Spark's planners
PROGRAM = """
import sys
import distlog

topic = distlog.open(sys.argv[1])
assert [segment.record_count for state in topic.snapshot.partitions for segment in state.segments] == [3, 3]
assert topic.snapshot.partitions[0].segments.next_offsets.tolist() == [3]
assert topic.scan().to_table().num_rows == 6
assert topic.segments().num_rows == 2
print("pandas" in sys.modules)
"""


@pytest.mark.long
def test_a_program_that_opens_and_reads_a_topic_never_waits_for_pandas(tmp_path: object) -> None:
    import distlog

    pytest.importorskip("pandas")
    topic = distlog.create(f"{tmp_path}/clicks", 2)
    for partition in range(2):
        topic.append([{"value": b"v"}] * 3, partition=partition)
    command = [sys.executable, "-c", PROGRAM, topic.url]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


# work that starts with a process: a command, and a gateway before it listens
COMMANDS = """
import contextlib, io, sys
from distlog.cli import main
from distlog.gateway.gateway_server import warm_up

def run(*arguments, stdin=b""):
    sys.argv, sys.stdin = ["distlog", *arguments], io.TextIOWrapper(io.BytesIO(stdin))
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main()
    assert "pandas" not in sys.modules, arguments

root, url = sys.argv[1:]
for name in ("describe", "segments", "history", "offsets", "read", "verify", "retention", "vacuum", "groups"):
    run(name, url)
run("list", root)
run("read", url, "--json")
run("append", url, stdin=b"a line\\nanother")
run("append", url, "--format", "records", stdin=b'{"key": "k", "value": "v", "headers": [{"key": "h", "value": ""}]}')
import distlog

topic = distlog.open(url)
topic.append([{"key": "k", "value": b"v", "headers": [("h", b"x"), ("i", None)], "partition": 1}, {"value": None}])
with topic.writer() as writer:
    writer.append(b"v", key=b"k")
warm_up()
print("pandas" in sys.modules, topic.refresh().scan().to_table().num_rows)
"""


@pytest.mark.long
def test_no_command_and_no_append_waits_for_pandas(tmp_path: object) -> None:
    import distlog

    pytest.importorskip("pandas")
    topic = distlog.create(f"{tmp_path}/clicks", 2)
    topic.append([{"value": b"v"}] * 3)
    command = [sys.executable, "-c", COMMANDS, str(tmp_path), topic.url]
    assert subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout == "False 9\n"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [1, None, -(2**63)]),
        (pa.int32(), (2**31 - 1, 0)),
        (pa.timestamp("ms", "UTC"), [None, 1_700_000_000_000]),
        (pa.bool_(), [True, False, True]),
        (pa.binary(), [b"", b"ab", None, b"c"]),
        (pa.string(), ["", None, "kä日"]),
        (HEADERS_TYPE, [None, [], [("a", b"b"), ("c", None)], [("d", b"e")]]),
        (HEADERS_TYPE, [[{"key": "d", "value": b"e"}], [], None]),
        (HEADERS_TYPE, [None]),
        (pa.list_(pa.int64()), [[1, 2], None, [3]]),
    ],
)
@pytest.mark.parametrize("times", [0, 1, 9])
def test_values_of_python_go_to_arrow(
    monkeypatch: pytest.MonkeyPatch, kind: pa.DataType, values: list[object], times: int
) -> None:
    expected, first = pa.array(values * times, kind), pa.scalar(values[0], kind)
    monkeypatch.delattr(pa, "array")
    column = column_of(values * times, kind)
    column.validate(full=True)
    assert column.equals(expected)
    assert column.null_count == expected.null_count
    assert scalar_of(values[0], kind).equals(first)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.binary(), "text"),
        (pa.binary(), bytearray(b"x")),
        (pa.float64(), 1.5),
        (pa.bool_(), None),
        (pa.int64(), np.int64(4)),
        (pa.string(), b"bytes"),
    ],
)
def test_other_values_are_left_to_arrow(kind: pa.DataType, value: object) -> None:
    assert column_of([value], kind).equals(pa.array([value], kind))


@pytest.mark.parametrize(("kind", "value"), [(pa.int32(), 2**31), (pa.int64(), "1"), (pa.binary(), 1)])
def test_arrows_errors_are_kept(kind: pa.DataType, value: object) -> None:
    with pytest.raises(pa.ArrowException) as ours:
        column_of([value], kind)
    with pytest.raises(pa.ArrowException) as theirs:
        pa.array([value], kind)
    assert (type(ours.value), str(ours.value)) == (type(theirs.value), str(theirs.value))


def test_rows_become_a_table_with_nulls() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    for rows in ([], [{"a": 1}, {"b": "x", "a": 2, "c": 3}]):
        assert table_of_rows(rows, schema).equals(pa.Table.from_pylist(rows, schema))


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_integers_go_to_arrow_and_back(kind: pa.DataType) -> None:
    for values in ([], [0], [-3, 5, 127]):
        column = integers(values, kind)
        assert column.equals(pa.array(values, kind))
        back = numbers_of(column)
        assert (back.tolist(), back.dtype, back.flags.writeable) == (values, kind.to_pandas_dtype(), False)
    assert numbers_of(integers([1, 2, 3, 4], kind).slice(1, 2)).tolist() == [2, 3]


def test_chunks_are_joined_and_a_null_is_not_a_number() -> None:
    assert numbers_of(pa.chunked_array([integers([1]), integers([2, 3])])).tolist() == [1, 2, 3]
    assert numbers_of(pa.chunked_array([], pa.int64())).tolist() == []
    with pytest.raises(pa.ArrowException, match="nulls"):
        numbers_of(pa.nulls(2, pa.int64()))


def test_an_integer_that_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        integers([2**63])


@pytest.mark.parametrize("values", [[], [True], [False, True, True, False, False, True, False, True, True]])
def test_flags_go_to_arrow_and_back(values: list[bool]) -> None:
    assert booleans(values).equals(pa.array(values, pa.bool_()))
    assert booleans(np.array(values, bool)[::-1]).equals(pa.array(values[::-1], pa.bool_()))
    assert flags_of(pa.array(values, pa.bool_())).tolist() == values
    assert flags_of(pa.array(values, pa.bool_()).slice(1)).tolist() == values[1:]


@pytest.mark.parametrize("values", [[], ["a"], ["", "kä", "日本", ""]])
def test_texts_go_to_arrow(values: list[str]) -> None:
    column = texts(values)
    column.validate(full=True)
    assert column.equals(pa.array(values, pa.string()))


def test_invalid_unicode_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        texts(["\ud800"])


def test_a_child_of_a_process_with_threads_does_not_wait_for_a_lock_of_arrows_memory() -> None:
    """A child keeps the lock of Arrow's pool forever if a thread of the parent held it at the fork."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if pa.default_memory_pool().backend_name == "system" else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1.5], pa.int64()),
        (np.array([2**31]), pa.int32()),
        (np.array([2**64 - 1], np.uint64), pa.int64()),
        ([float("nan")], pa.int64()),
    ],
)
def test_numbers_out_of_range_are_refused(values: object, kind: pa.DataType) -> None:
    with np.errstate(invalid="ignore"), pytest.raises(OverflowError, match="does not fit in int"):
        integers(values, kind)  # type: ignore[arg-type]


def test_convertible_numbers_are_accepted() -> None:
    columns = ([], [1.0, 2.0], np.array([7], np.uint64), range(3))
    assert [integers(values, pa.int32()).to_pylist() for values in columns] == [[], [1, 2], [7], [0, 1, 2]]


@pytest.mark.long
def test_a_fork_after_pandas_prints_nothing() -> None:
    code = "import subprocess, distlog.core.arrays; subprocess.run(['true'], preexec_fn=int, check=True)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"caf\xc3\xa9 \xf0\x9f\x98\x80", "café 😀"),
        (b"\xed\xa0\x80-\xed\xa0-\xed-", "\ufffd-\ufffd-\ufffd-"),
        (b"\xc0\x80\xe0\x80\x80", 5 * "\ufffd"),
        (b"\xe0\xa0-\xf0\x90\x80-", "\ufffd-\ufffd-"),
        (b"\xf4\x90\x80\x80\xf5\x80", 6 * "\ufffd"),
    ],
)
def test_bytes_that_are_not_utf8_are_shown_as_by_java(data: bytes, text: str) -> None:
    assert java_text(data) == text

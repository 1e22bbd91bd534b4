"""Columns of Arrow from Python and numpy and back: what Arrow's own ways give, without pandas."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from distlog.core.arrays import booleans, flags_of, integers, numbers_of, texts

# What a command and each of Spark's planners do.
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


def test_a_program_that_opens_and_reads_a_topic_never_waits_for_pandas(tmp_path: object) -> None:
    import distlog

    pytest.importorskip("pandas")
    topic = distlog.create(f"{tmp_path}/clicks", 2)
    for partition in range(2):
        topic.append([{"value": b"v"}] * 3, partition=partition)
    command = [sys.executable, "-c", PROGRAM, topic.url]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("kind", [pa.int8(), pa.int32(), pa.int64()])
def test_integers_go_to_arrow_and_back(kind: pa.DataType) -> None:
    for values in ([], [0], [-3, 5, 127]):
        column = integers(values, kind)
        assert column.equals(pa.array(values, kind))
        back = numbers_of(column)
        assert (back.tolist(), back.dtype, back.flags.writeable) == (values, kind.to_pandas_dtype(), False)
    assert numbers_of(integers([1, 2, 3, 4], kind).slice(1, 2)).tolist() == [2, 3]


def test_chunks_are_joined_and_a_null_is_no_number() -> None:
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


def test_what_is_no_text_of_unicode_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        texts(["\ud800"])


def test_a_child_of_a_process_with_threads_does_not_wait_for_a_lock_of_arrows_memory() -> None:
    """The lock of Arrow's own pool stays held in the child for ever if a thread of the parent had it at the fork."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if pa.default_memory_pool().backend_name == "system" else 1)
    ends.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

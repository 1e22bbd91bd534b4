"""Prefetching: in order, in parallel, only as far as requested, and it stops with the reader."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog import StorageError
from distlog.core.segments import segment_parts
from distlog.core.segments.segment_parts import LogFile
from distlog.core.storage.backend import Part
from distlog.core.storage.calls import in_order
from distlog.core.storage.storage import Storage

PATIENCE_S = 30.0


def waits_for(event: threading.Event, result: int) -> Callable[[], int]:
    def task() -> int:
        assert event.wait(PATIENCE_S)
        return result

    return task


def sets(event: threading.Event, result: int) -> Callable[[], int]:
    def task() -> int:
        event.set()
        return result

    return task


def test_results_come_in_order_while_later_tasks_run() -> None:
    event = threading.Event()
    assert list(in_order([waits_for(event, 0), waits_for(event, 1), sets(event, 2), sets(event, 3)], buffered=3)) == [
        0,
        1,
        2,
        3,
    ]


def test_a_single_task_runs_in_the_calling_thread() -> None:
    assert list(in_order([threading.get_ident], 3)) == [threading.get_ident()]
    assert list(in_order(iter([]), 3)) == []


def test_no_task_starts_before_the_first_result_is_requested() -> None:
    started: list[int] = []
    assert in_order([lambda: started.append(1)], 3) is not None
    assert started == []


def test_the_number_of_prefetched_tasks_is_bounded() -> None:
    taken_tasks: list[int] = []

    def tasks() -> Iterator[Callable[[], int]]:
        for number in range(100):
            taken_tasks.append(number)
            yield lambda number=number: number

    results = in_order(tasks(), buffered=3)
    for number in range(10):
        assert next(results) == number
        assert len(taken_tasks) == number + 4
    results.close()  # type: ignore[attr-defined]
    assert len(taken_tasks) == 13


def test_an_error_comes_in_its_turn() -> None:
    def fail() -> int:
        raise StorageError("no more")

    results = in_order([lambda: 0, fail, lambda: 2], 3)
    assert next(results) == 0
    with pytest.raises(StorageError, match="no more"):
        next(results)


class Remote(Storage):
    """A storage in memory that records its reads."""

    def __init__(self, url: str, data: bytes) -> None:
        super().__init__(url)
        self.put("log", data)
        self.ranges_asked: list[tuple[int, int]] = []

    def read_joined(self, ranges: Any) -> memoryview:
        self.ranges_asked += [(start, end) for _, start, end in ranges]
        return super().read_joined(ranges)


DATA = bytes(number % 251 for number in range(10_000))


@pytest.fixture
def remote(memory_url: Any, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setattr(segment_parts, "WINDOW_BYTES", 1000)
    return Remote(memory_url.url, DATA)


def test_one_read_is_one_exact_request(remote: Remote) -> None:
    file = LogFile(remote, Part.file("log", 0), 10_000, mapped=False)
    assert bytes(file.read(500, 700)) == DATA[500:700]
    file.close()
    assert remote.ranges_asked == [(500, 700)]


def test_a_second_read_starts_windows_that_double_and_stay_bounded(remote: Remote) -> None:
    file = LogFile(remote, Part.file("log", 0), 10_000, mapped=False)
    file.read(0, 200)
    assert bytes(file.read(150, 400)) == DATA[150:400]
    assert len(remote.ranges_asked) <= 2 + segment_parts.DEPTH
    for start in range(400, 10_000, 300):
        assert bytes(file.read(start, min(start + 300, 10_000))) == DATA[start : start + 300]
    file.close()
    windows = [(low, min(low + 1000, 10_000)) for low in range(1400, 10_000, 1000)]
    assert sorted(remote.ranges_asked) == [(0, 200), (200, 600), (600, 1400), *windows]


def test_a_read_past_the_expected_end_is_a_separate_request(remote: Remote) -> None:
    file = LogFile(remote, Part.file("log", 0), 1000, mapped=False)
    assert bytes(file.read(900, 1000)) == DATA[900:1000]
    assert bytes(file.read(950, 2500)) == DATA[950:2500]
    assert bytes(file.read(2500, 2600)) == DATA[2500:2600]
    assert remote.ranges_asked == [(900, 1000), (950, 2500), (2500, 2600)]


@given(st.lists(st.tuples(st.integers(0, 300), st.integers(1, 900)), max_size=20), st.integers(0, 10_000))
def test_any_reads_forward_give_the_bytes_of_the_file(steps: list[tuple[int, int]], end: int) -> None:
    storage = Remote("memory://any-reads", DATA)
    file = LogFile(storage, Part.file("log", 0), end, mapped=False)
    position = 0
    for skip, size in steps:
        position += skip
        assert (
            bytes(file.read(position, min(position + size, 10_000))) == DATA[position : min(position + size, 10_000)]
        )
        position = min(position + size // 2, 9_000)
    file.close()


@pytest.mark.parametrize("mapped", [True, False])
def test_a_local_file_is_read_or_mapped_alike(tmp_path: Any, mapped: bool) -> None:
    storage = Storage(tmp_path)
    storage.put("log", DATA)
    file = LogFile(storage, Part.file("log", 0), 100, mapped=mapped)
    assert bytes(file.read(50, 7000)) == DATA[50:7000]
    assert storage.counters.bytes_read == (0 if mapped else 6950)
    with pytest.raises(StorageError, match="shorter"):
        file.read(9000, 10_001)
    file.close()


def test_a_file_on_a_network_is_never_mapped(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_parts, "known_local_disk", lambda folder: folder != str(tmp_path))
    (tmp_path / "log").write_bytes(b"x" * 100)
    storage = Storage(str(tmp_path))
    assert bytes(LogFile(storage, Part.file("log", 0), 100, mapped=True).read(0, 100)) == b"x" * 100
    assert storage.counters.bytes_read == 100

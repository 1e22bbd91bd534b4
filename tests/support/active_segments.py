"""Active segments that tests append to: batches with offsets, a clock, and calls of the system that fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raw_batches import batch, record

from distlog.core import paths
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import read_headers
from distlog.core.log.log_segment import LogSegment
from distlog.core.segments.producer_states import OpenTransactions
from distlog.core.segments.segment_state import SegmentState

NOW = 1_700_000_000_000
SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


class Clock:
    def __init__(self) -> None:
        self.now_ms = NOW

    def __call__(self) -> int:
        return self.now_ms


class FailingCalls:
    """The calls of `os`; one fails after `spared` more calls."""

    def __init__(self) -> None:
        self.calls_made: list[str] = []
        self._failing: dict[str, tuple[int, int, int]] = {}

    def fail(self, name: str, *, spared: int = 0, times: int = 1, code: int = errno.ENOSPC) -> None:
        self._failing[name] = spared, times, code

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls_made.append(name)
            spared, times, code = self._failing.get(name, (1 << 60, 0, 0))
            if name in self._failing:
                self._failing[name] = (spared - 1, times, code) if spared else (0, times - 1, code)
            if not spared and times > 0:
                raise OSError(code, os.strerror(code))
            return getattr(os, name)(*arguments)

        return call


class ShortWrites(FailingCalls):
    """Calls of which a write takes `count` bytes at most."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._count = count

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        return int(self.__getattr__("pwrite")(fd, data[: self._count], offset))


def config(**settings: Any) -> TopicConfig:
    """A config with these settings, under the names of its fields."""
    return TopicConfig(**{"index_interval_bytes": 4096, **settings})


def new_segment(
    folder: Path, base_offset: int = 0, *, calls: Any = os, clock: Any = None, **settings: Any
) -> LogSegment:
    """An empty segment in `folder`, with the stem that Kafka gives it."""
    clock = clock or Clock()
    return LogSegment.create(
        str(folder), f"{base_offset:020d}", base_offset, config(**settings), clock=clock, calls=calls
    )


def reopened(folder: Path, state: SegmentState, **settings: Any) -> LogSegment:
    """The segment of that state, as another process opens it."""
    return LogSegment(str(folder), state, config(**settings), clock=Clock())


def found_again(folder: Path, base_offset: int = 0, **settings: Any) -> LogSegment:
    """The segment as somebody opens it who knows nothing but its name; to be recovered."""
    state = SegmentState.new(f"{base_offset:020d}", base_offset, NOW)
    return LogSegment(str(folder), state, config(**settings), clock=Clock())


def records(
    offset: int, values: Sequence[bytes] = (b"value",), *, timestamp: int | None = None, **fields: Any
) -> bytes:
    """A batch of values from `offset` on, all of the time `timestamp`, else ten times the offset."""
    time = 10 * offset if timestamp is None else timestamp
    rows = [record(delta, 0, None, value) for delta, value in enumerate(values)]
    return batch(rows, base_offset=offset, base_timestamp=time, max_timestamp=time, **fields)


def append(segment: LogSegment, *batches: bytes) -> None:
    data = b"".join(batches)
    segment.append(data, read_headers(data))


def offsets(segment: LogSegment, start: int = 0) -> list[int]:
    """The base offsets of the batches from the one that holds `start`, or the next one, on."""
    return read_headers(data_from(segment, start))["base_offset"].tolist()


def data_from(segment: LogSegment, start: int = 0) -> bytes:
    """The bytes of the batches from the one that holds `start`, or the next one, on."""
    position = segment.translate_offset(start)
    return b"" if position is None else Path(segment.file).read_bytes()[position.position : segment.size]


def files(folder: Path, stem: str | int = 0) -> dict[str, bytes]:
    """The segment's files by suffix, as far as there are any."""
    name = stem if isinstance(stem, str) else f"{stem:020d}"
    paths_by_suffix = {suffix: folder / f"{paths.check_stem(name)}{suffix}" for suffix in SUFFIXES}
    return {suffix: path.read_bytes() for suffix, path in paths_by_suffix.items() if path.exists()}


def none_open() -> OpenTransactions:
    """The start of a walk without an open transaction."""
    return OpenTransactions()


def filled(folder: Path, count: int = 100, **settings: int) -> SegmentState:
    """The state of a segment of `count` batches of one record, with an entry for each but the first."""
    segment = new_segment(folder, index_interval_bytes=0, **settings)
    for offset in range(count):
        append(segment, records(offset))
    segment.close()
    return segment.state

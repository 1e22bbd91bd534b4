"""A segment in place against a list of batches, with any order of appends, cuts, crashes, reopenings and lookups."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from active_segments import append, data_from, files, new_segment, none_open, reopened
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raw_batches import batch, record
from searches import examples

from distlog.core.batches.record_batch import read_headers
from distlog.core.segments.segment_state import LogDescription, SegmentState

SHAPES = st.tuples(st.integers(0, 3), st.lists(st.integers(0, 40), min_size=1, max_size=4), st.binary(max_size=30))
BASE = 1000
#: Preallocated, but no limit here.
LOG_BYTES = 4096


class SegmentModel(RuleBasedStateMachine):
    """`self.batches` are (base offset, record times, bytes)."""

    @initialize(interval=st.sampled_from([0, 150, 4096]), preallocate=st.booleans())
    def begin(self, interval: int, preallocate: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        self.settings = {
            "index_interval_bytes": interval,
            "segment_index_bytes": 600,
            "preallocate": preallocate,
            "segment_bytes": LOG_BYTES,
        }
        self.segment = new_segment(self.path, BASE, **self.settings)
        self.batches: list[tuple[int, list[int], bytes]] = []

    @property
    def next_offset(self) -> int:
        if not self.batches:
            return BASE
        base, times, _ = self.batches[-1]
        return base + len(times)

    def made(self, shape: tuple[int, list[int], bytes], at: int) -> tuple[int, list[int], bytes]:
        gap, times, value = shape
        rows = [record(delta, time - times[0], None, value) for delta, time in enumerate(times)]
        data = batch(rows, base_offset=at + gap, base_timestamp=times[0], max_timestamp=max(times))
        return at + gap, times, data

    @rule(shapes=st.lists(SHAPES, min_size=1, max_size=5))
    def append(self, shapes: list[tuple[int, list[int], bytes]]) -> None:
        first = len(self.batches)
        for shape in shapes:
            self.batches.append(self.made(shape, self.next_offset))
        append(self.segment, *(data for _, _, data in self.batches[first:]))

    @rule(shapes=st.lists(SHAPES, min_size=1, max_size=4), part=st.floats(0, 1))
    def die_while_writing(self, shapes: list[tuple[int, list[int], bytes]], part: float) -> None:
        added, at = [], self.next_offset
        for shape in shapes:
            added.append(self.made(shape, at))
            at = added[-1][0] + len(added[-1][1])
        data = b"".join(each for _, _, each in added)
        left = int(part * len(data))
        with (self.path / f"{self.segment.stem}.log").open("r+b") as log:
            log.seek(self.segment.size)
            log.write(data[:left])
        self.reopen()
        self.segment.recover_tail(none_open())
        # a batch is whole, too, of which only zeros are missing that are there already
        there = data[:left].ljust(len(data) if self.settings["preallocate"] else 0, b"\0")
        for each in added:
            if not there.startswith(each[2]):
                break
            there = there[len(each[2]) :]
            self.batches.append(each)

    @rule(offset=st.integers(BASE - 2, BASE + 60))
    def truncate(self, offset: int) -> None:
        self.segment.truncate_to(offset, none_open())
        self.batches = [each for each in self.batches if each[0] + len(each[1]) <= offset]

    @rule()
    def reopen(self) -> None:
        state = SegmentState.unpack(self.segment.packed_state())
        self.segment.close()
        self.segment = reopened(self.path, state, **self.settings)

    @rule()
    def recover(self) -> None:
        state = self.segment.state
        self.segment.recover(none_open())
        assert self.segment.state == state

    @rule(offset=st.integers(BASE - 2, BASE + 60))
    def read(self, offset: int) -> None:
        expected = b"".join(data for base, times, data in self.batches if base + len(times) > offset)
        assert data_from(self.segment, offset) == expected

    @rule(time=st.integers(0, 41), start=st.integers(BASE, BASE + 30))
    def find(self, time: int, start: int) -> None:
        matches = [
            (found, base + delta, -1)
            for base, times, _ in self.batches
            for delta, found in enumerate(times)
            if found >= time and base + delta >= start
        ]
        assert self.segment.find_offset_by_timestamp(time, start) == (matches[0] if matches else None)

    @invariant()
    def files_are_those_of_the_list(self) -> None:
        if not hasattr(self, "segment"):
            return
        log = b"".join(data for _, _, data in self.batches)
        found, state = files(self.path, BASE), self.segment.state
        state.check()
        assert (state.position, state.next_offset) == (len(log), self.next_offset)
        length = LOG_BYTES if self.settings["preallocate"] else len(log)
        assert found[".log"] == log.ljust(length, b"\0")
        description = LogDescription(BASE, interval_bytes=int(self.settings["index_interval_bytes"]))
        description.add(log, read_headers(log))
        expected = description.finish()
        sizes = {".index": state.offset_index_bytes, ".timeindex": state.time_index_bytes}
        for suffix, size in sizes.items():
            assert found[suffix][:size] == expected[suffix][:size]
            # but for the last time entry, which the seal adds
            assert len(expected[suffix]) - size in ((0,) if suffix == ".index" else (0, 12))
            assert not any(found[suffix][size:])

    def teardown(self) -> None:
        if hasattr(self, "segment"):
            self.segment.close()
            self.folder.cleanup()


TestSegmentModel = pytest.mark.long(SegmentModel.TestCase)
TestSegmentModel.settings = examples(20, stateful_step_count=20)

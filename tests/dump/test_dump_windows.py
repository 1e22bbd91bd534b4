"""Several threads dump a log in windows, and the output does not depend on the windows."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from pathlib import Path

import golden
import pytest
from dumps import dumped

from distlog.core.format.record_batch import Batches
from distlog.core.kafka.dump import BatchLines, DumpedFile, LogWindows, dump
from distlog.core.kafka.dump_lines import DumpOptions, DumpOutput

PARTITIONS = golden.partitions()
#: Compressed, with transactions, with gaps, and of formats 0 and 1.
LOGS = [
    PARTITIONS[name].logs[0]
    for name in ("first.codec-lz4-0", "first.txn-0", "cleaned.compact-none-0", "logs.mixed-0")
]


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("log", LOGS, ids=lambda log: log.parent.name)
def test_windows_of_any_size_give_the_same_lines(log: Path, as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    dump_at_once = dumped(log, as_json=as_json, print_data_log=True)
    monkeypatch.setattr("distlog.core.kafka.dump.WINDOW_BYTES", 700)
    monkeypatch.setattr("distlog.core.kafka.dump.PART_BYTES", 300)
    assert dumped(log, as_json=as_json, print_data_log=True) == dump_at_once


def test_damage_is_reported_at_its_position_in_any_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, data = tmp_path / LOGS[0].name, bytearray(LOGS[0].read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big")
    data[second + 57] = 0xFF
    log.write_bytes(data[:-5])
    dump_at_once = dumped(log, deep_iteration=True)
    assert (dump_at_once.err.count("negative number of records"), dump_at_once.err.count("Non-consecutive")) == (1, 1)
    assert dump_at_once.lines[-1].startswith("Found ")
    monkeypatch.setattr("distlog.core.kafka.dump.WINDOW_BYTES", 700)
    assert dumped(log, deep_iteration=True) == dump_at_once


class Closed(io.BytesIO):
    """A pipe that is closed by its reader after some lines."""

    def write(self, data: object) -> int:
        if self.tell():
            raise BrokenPipeError
        return super().write(data)  # type: ignore[arg-type]


def test_no_thread_is_left_after_the_output_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("distlog.core.kafka.dump.WINDOW_BYTES", 700)
    with pytest.raises(BrokenPipeError):
        dump(
            [DumpedFile.from_address(str(LOGS[0]))],
            DumpOptions(deep_iteration=True),
            DumpOutput(Closed(), io.BytesIO()),
        )
    assert [thread for thread in threading.enumerate() if thread.name.startswith("distlog-ahead")] == []


def test_a_large_window_is_decompressed_part_by_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    format_window = LogWindows.format

    def counted(self: LogWindows, frames: Batches) -> Iterator[BatchLines]:
        for part in format_window(self, frames):
            sizes.append(len(part.lines))
            yield part

    class Watched(io.BytesIO):
        def write(self, data: object) -> int:
            sizes_at_write.append(len(sizes))
            return super().write(data)  # type: ignore[arg-type]

    sizes_at_write: list[int] = []
    monkeypatch.setattr(LogWindows, "format", counted)
    monkeypatch.setattr("distlog.core.kafka.dump.PART_BYTES", 100)
    dump(
        [DumpedFile.from_address(str(LOGS[0]))], DumpOptions(deep_iteration=True), DumpOutput(Watched(), io.BytesIO())
    )
    # two lines of titles, then part after part
    assert sizes_at_write[:4] == [0, 0, 4, 4]
    assert len(sizes) > 10

"""Dumps a log: a line for each batch, with its checksum checked, and for each of its records if they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import first_bad_crc
from distlog.core.batches.source import Source
from distlog.core.buffers import byte_array
from distlog.core.dump.dumped_file import DumpedFile, Frames
from distlog.core.dump.line import Line, number
from distlog.core.dump.log_lines import LogStyle
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput
from distlog.core.dump.scanned import Scanned, no_records, scan
from distlog.core.errors import CorruptRecordError

#: Records are shown when their batches have decompressed to so many bytes.
PART_BYTES = 4 << 20
#: The formats whose records can be read.
_FORMATS = range(3)

NON_CONSECUTIVE = Line("nonConsecutive", (number("first", ""), number("second", " is followed by ")), begin="  ")


def dump_log(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write what is in a `.log` file. Goes on behind a batch that cannot be read, as long as its size can be."""
    output.say(f"Log starting offset: {file.base_offset}", "log", startOffset=file.base_offset)
    _LogDump(file, options, output).run(min(file.size, options.max_bytes))


class _LogDump:
    def __init__(self, file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
        self._file, self._options, self._output = file, options, output
        self._style = LogStyle(not options.skip_record_metadata, options.print_data_log, output.as_json)
        self._last_offset = -1
        self._title = f"Non-consecutive offsets in {file.path}"

    def run(self, end: int) -> None:
        position = 0
        try:
            for frames in self._file.frames(end):
                self._show(frames)
                position = frames.position + len(frames.data)
        except CorruptRecordError as error:
            self._output.fail(error)
        if position < end and not self._options.is_cut:
            text = f"Found {end - position} invalid bytes at the end of {self._file.name}"
            self._output.say(text, "invalidBytes", count=end - position)

    def _show(self, frames: Frames) -> None:
        valid = checksums_hold(frames)
        for start, end in _runs_of_one_format(frames.batches):
            batches = frames.batches[start:end]
            for found, error in self._found(frames, batches):
                count = len(found.counts)
                lines = self._style.lines(batches[:count], frames.position, valid[start : start + count], found)
                self._output.write(lines)
                self._compare_offsets(found)
                if error is not None:
                    self._output.fail(error)
                batches, start = batches[count:], start + count

    def _found(
        self, frames: Frames, batches: npt.NDArray[Any]
    ) -> Iterator[tuple[Scanned, CorruptRecordError | None]]:
        """The records of `batches`, part by part; a batch that cannot be read is a part by itself."""
        source = Source(self._file.path, frames.position)
        if not self._options.is_deep:
            yield no_records(batches), None
            return
        if batches["magic"][0] not in _FORMATS:
            text = f"batches have the unknown format {batches['magic'][0]}, so their records are not shown"
            yield no_records(batches), source.corrupt(text, 0, batches[0])
            return
        data, columns = byte_array(frames.data), self._columns(batches)
        while len(batches):
            found, error = scan(data, batches, source, columns, PART_BYTES)
            if error is not None and len(batches) > 1:
                # halves of halves find the bad batch
                yield from self._found(frames, batches[: len(batches) // 2])
                batches = batches[len(batches) // 2 :]
            else:
                yield found, error
                batches = batches[len(found.counts) :]

    def _columns(self, batches: npt.NDArray[Any]) -> tuple[str, ...]:
        has_headers = batches["magic"][0] == 2 and self._style.metadata
        return ("key", "value", "headers") if has_headers else ("key", "value")

    def _compare_offsets(self, found: Scanned) -> None:
        if found.size == 0:
            return
        offsets = found.offsets if self._last_offset == -1 else np.append(self._last_offset, found.offsets)
        gaps = np.flatnonzero(np.diff(offsets) != 1)
        columns = {"first": offsets[gaps], "second": offsets[gaps + 1]}
        self._output.problems(self._title, NON_CONSECUTIVE, columns)
        self._title = "" if len(gaps) else self._title
        self._last_offset = int(offsets[-1])


def checksums_hold(frames: Frames) -> npt.NDArray[np.bool_]:
    """Whose checksum is that of their bytes."""
    valid, row = np.ones(len(frames.batches), bool), 0
    while row < len(valid) and (bad := first_bad_crc(frames.data, frames.batches[row:])) >= 0:
        row += bad
        valid[row] = False
        row += 1
    return valid


def _runs_of_one_format(batches: npt.NDArray[Any]) -> Iterator[tuple[int, int]]:
    changes = np.flatnonzero(np.diff(batches["magic"])) + 1
    return zip([0, *changes.tolist()], [*changes.tolist(), len(batches)], strict=True)

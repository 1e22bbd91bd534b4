"""Dumps a log: a line for each batch, with its checksum checked, and for each of its records if they are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import partial

import numpy as np

from distlog.core.dump.dumped_file import DumpedFile, Frames
from distlog.core.dump.line import Line, number
from distlog.core.dump.log_lines import LogStyle
from distlog.core.dump.log_window import LogWindows, Shown
from distlog.core.dump.options import DumpOptions
from distlog.core.dump.output import DumpOutput
from distlog.core.errors import CorruptRecordError
from distlog.core.storage.parallel import begun, cores, in_order

#: How many parts of a window are made before they are asked for: more would need memory without a bound, since a
#: window may decompress to any size.
_AHEAD_PARTS = 4

NON_CONSECUTIVE = Line("nonConsecutive", (number("first", ""), number("second", " is followed by ")), begin="  ")


def dump_log(file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
    """Write what is in a `.log` file. Goes on behind a batch that cannot be read, as long as its size can be."""
    output.say(f"Log starting offset: {file.base_offset}", "log", startOffset=file.base_offset)
    _LogDump(file, options, output).run(min(file.size, options.max_bytes))


class _LogDump:
    def __init__(self, file: DumpedFile, options: DumpOptions, output: DumpOutput) -> None:
        self._file, self._options, self._output = file, options, output
        style = LogStyle(not options.skip_record_metadata, options.print_data_log, output.as_json)
        self._windows = LogWindows(file.path, style, options.is_deep)
        self._last_offset = -1
        self._title = f"Non-consecutive offsets in {file.path}"

    def run(self, end: int) -> None:
        position = 0
        try:
            for shown, stop in self._shown(end):
                for part in shown:
                    self._write(part)
                position = stop
        except CorruptRecordError as error:
            self._output.fail(error)
        if position < end and not self._options.is_cut:
            text = f"Found {end - position} invalid bytes at the end of {self._file.name}"
            self._output.say(text, "invalidBytes", count=end - position)

    def _shown(self, end: int) -> Iterator[tuple[Iterator[Shown], int]]:
        """What is shown of each window, and where it ends; all cores make the next ones."""
        workers = cores()
        tasks = (partial(self._begun, frames) for frames in self._file.frames(end))
        with closing(in_order(tasks, workers + 1, workers=workers, joined=True)) as windows:
            yield from windows

    def _begun(self, frames: Frames) -> tuple[Iterator[Shown], int]:
        return begun(self._windows.show(frames), _AHEAD_PARTS), frames.position + len(frames.data)

    def _write(self, part: Shown) -> None:
        self._output.write(part.lines)
        self._compare_offsets(part)
        if part.error is not None:
            self._output.fail(part.error)

    def _compare_offsets(self, part: Shown) -> None:
        if part.ends is None:
            return
        (first, last), before, after = part.ends, part.before, part.after
        if self._last_offset not in (-1, first - 1):
            before, after = np.append(self._last_offset, before), np.append(first, after)
        self._output.problems(self._title, NON_CONSECUTIVE, {"first": before, "second": after})
        self._title = "" if len(before) else self._title
        self._last_offset = last

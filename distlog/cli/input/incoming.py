"""Takes the lines of a file, a pipe or a terminal as they come."""

from __future__ import annotations

import io
import select
from collections.abc import Callable, Iterator
from typing import BinaryIO

BLOCK_BYTES = 4 << 20


def blocks(
    file: BinaryIO, size: int = BLOCK_BYTES, wait: Callable[[], float | None] = lambda: None
) -> Iterator[bytes | None]:
    """The file in blocks of whole lines, of about `size` bytes at most. A block has no newline at its end.

    A block is what is there, if that is less. None says that nothing came for as many seconds as `wait` gives.
    """
    kept: list[bytes] = []
    while (found := _read(file, size, wait())) != b"":
        if found is None:
            yield None
            continue
        lines, newline, rest = found.rpartition(b"\n")
        if newline:
            yield b"".join([*kept, lines])
            kept.clear()
        if rest:
            kept.append(rest)
    if kept:
        yield b"".join(kept)


def _read(file: BinaryIO, size: int, seconds: float | None) -> bytes | None:
    """What is there, up to `size` bytes, but at least one if the file has not ended; None after `seconds`."""
    if not _is_ready(file, seconds):
        return None
    found = [file.read(size) if _descriptor(file) is None else _read_some(file, size)]
    while found[-1] and (size := size - len(found[-1])) > 0 and _is_ready(file, 0):
        found.append(_read_some(file, size))
    return b"".join(found)


def _read_some(file: BinaryIO, size: int) -> bytes:
    """What one read gives."""
    return file.read1(size) if isinstance(file, io.BufferedReader) else file.read(size)


def _descriptor(file: BinaryIO) -> int | None:
    try:
        return file.fileno()
    except io.UnsupportedOperation:
        return None


def _is_ready(file: BinaryIO, seconds: float | None) -> bool:
    number = _descriptor(file)
    return number is None or is_readable(number, seconds)


def is_readable(descriptor: int, seconds: float | None) -> bool:
    """Whether a read would not wait, now or within so many seconds; None waits for as long as it takes."""
    # not by `select`, which refuses descriptors above 1023
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    return bool(ready.poll(None if seconds is None else 1000 * seconds))

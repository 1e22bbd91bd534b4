"""Prepares the standard streams. It does not import pyarrow, so that `distlog --help` is fast."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import TextIO

from distlog.core.errors import RetentionWarning, TimestampWarning


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams, since a file opened later must not get their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the rest of the process


def buffer_lines() -> None:
    """Buffer output by line, even with PYTHONUNBUFFERED, so that a signal does not cut a write short."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # a stream that a caller has put here stays, since the caller may close it
        if stream is getattr(sys, f"__{name}__") and isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            buffered = open(stream.fileno(), "w", 1, stream.encoding, stream.errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, buffered)


def escape_unencodable_text() -> None:
    """Show characters that the encoding of standard output lacks as \\xNN or \\uNNNN, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_unwritable_output() -> None:
    """Drop buffered output that cannot be written, since Python would try to write it again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_warnings(program: str) -> None:
    """Print warnings about the times of appended records on a line of standard error, and other warnings as usual."""
    show_as_usual = warnings.showwarning

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, (RetentionWarning, TimestampWarning)):
            print(f"{program}: {message}", file=sys.stderr)
        else:
            show_as_usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show

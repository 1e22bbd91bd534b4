"""Makes up for standard streams that are closed or cannot be written; without pyarrow, for `distlog --help`."""

from __future__ import annotations

import io
import os
import sys
import warnings
from typing import TextIO

from distlog.core.errors import RetentionWarning, TimestampWarning


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams: a file opened later must not get their numbers."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the rest of the process


def write_whole() -> None:
    """Have all text written, line by line, also with PYTHONUNBUFFERED and after a signal."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # a stream that a caller has put there is the caller's, who may close it
        if stream is getattr(sys, f"__{name}__") and isinstance(getattr(stream, "buffer", None), io.RawIOBase):
            unbuffered = open(stream.fileno(), "w", 1, stream.encoding, stream.errors, closefd=False)  # noqa: SIM115
            setattr(sys, name, unbuffered)


def escape_what_cannot_be_encoded() -> None:
    """Show characters that the encoding of standard output lacks as \\xNN or \\uNNNN, as standard error does."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors in ("strict", "surrogateescape"):
        sys.stdout.reconfigure(errors="backslashreplace")


def drop_what_cannot_be_written() -> None:
    """Drop the text that standard output still holds if it cannot be written: Python would try again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show_warnings(program: str) -> None:
    """Print each warning of distlog as a line of standard error; warnings of others look as usual."""
    usual = warnings.showwarning

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
            usual(message, category, filename, lineno, file, line)

    warnings.showwarning = show

"""Ends a command or a job: prints what it did, for people or as JSON, or why it failed, and sets the exit status.

Exit status: 0 done, 1 it failed or found something wrong, 2 the command line is wrong, 130 and 143 it was ended by
SIGINT (Ctrl-C) or SIGTERM.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from distlog.console import output
from distlog.console.standard_streams import drop_what_cannot_be_written
from distlog.core.errors import InvalidConfigError

DONE, FAILED, WRONG_USAGE = 0, 1, 2
#: 128 and the number of SIGINT or SIGTERM, as shells have it.
INTERRUPTED, TERMINATED = 130, 143


class Report(Protocol):
    """Says what was done: `str` gives a text for people. `ok` among the facts may say that something is wrong."""

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""


@runtime_checkable
class WithTable(Protocol):
    """A report that shows people a table too."""

    def to_table(self) -> pa.Table:
        """The rows of the table."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A report made by its caller. People see its text and the columns `names` (default: all) of `rows`."""

    text: str
    facts: Mapping[str, Any]
    rows: Sequence[output.Row] = ()
    names: Sequence[str] | None = None

    def __str__(self) -> str:
        return self.text

    def to_dict(self) -> dict[str, Any]:
        """The facts."""
        return dict(self.facts)


def print_report(report: Report, *, as_json: bool) -> None:
    """Print one JSON object as the last line; or the text, and then the rows if there are any."""
    if as_json:
        output.print_json(report.to_dict())
    else:
        _print_for_people(report)
    sys.stdout.flush()


def _print_for_people(report: Report) -> None:
    if line := str(report):
        print(line)
    if isinstance(report, Summary):
        output.print_rows(report.rows, report.names)
    elif isinstance(report, WithTable):
        output.print_rows(output.rows_of(report.to_table()))


def status_of(report: Report) -> int:
    """The exit status after a report."""
    return DONE if report.to_dict().get("ok", True) else FAILED


def fail(program: str, error: Exception, reason: str | None = None, *, as_json: bool = False) -> int:
    """Print on one line of standard error why `program` failed, and as JSON on standard output, if that is asked for.

    Returns the exit status. The default reason is the error's text.
    """
    text = reason or " ".join(str(error).split())
    print(f"{program}: {text}", file=sys.stderr)
    if as_json:
        with suppress(OSError):  # what failed may be standard output itself
            output.print_json({"error": text, "type": type(error).__name__})
            sys.stdout.flush()
    drop_what_cannot_be_written()
    return WRONG_USAGE if isinstance(error, InvalidConfigError) else FAILED

"""What every job does around its one call: arguments that all take, the session, a summary, the exit status.

Exit status: 0 done, 1 it failed and one line on standard error says why, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from distlog.console import arguments
from distlog.core.errors import InvalidConfigError
from distlog.spark.spark_session import session

T = TypeVar("T")

#: Where a Python or Java stack trace names an exception, the text behind it up to the trace's next line.
_RAISED = re.compile(r"^\s*(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_USER_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Summary:
    """What a job did: lines for people, and the object that `--json` prints."""

    text: str
    facts: Mapping[str, Any]


def job_parser(description: str) -> argparse.ArgumentParser:
    """A parser with the arguments of every job: --topic, --storage and --json."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    parser.add_argument("--topic", required=True, metavar="URL", help="the topic's path or URL")
    add_shared_arguments(parser)
    return parser


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every job takes whatever it works on: --json and --storage."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument(
        "--storage",
        action="append",
        default=[],
        type=argument(arguments.setting),
        metavar="NAME=VALUE",
        help="a setting of the storage's client, as in endpoint_url=URL; may be repeated",
    )


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """`parse` for argparse, with its ValueError as what is wrong with the command line."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def run_job(
    parser: argparse.ArgumentParser,
    work: Callable[[SparkSession, argparse.Namespace], Summary],
    given: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, do the work in a session, print its summary; returns the exit status."""
    chosen = parser.parse_args(given)
    try:
        summary = work(session(parser.prog), chosen)
    except InvalidConfigError as error:
        return _failed(parser, error, 2)
    except Exception as error:
        return _failed(parser, error, 1)
    print(json.dumps(summary.facts) if chosen.json else summary.text, flush=True)
    return 0


def _failed(parser: argparse.ArgumentParser, error: Exception, status: int) -> int:
    print(f"{parser.prog}: {reason(error)}", file=sys.stderr)
    return status


def reason(error: BaseException) -> str:
    """Why Spark or distlog failed, on one line: of Spark's pages of stack traces the innermost exception's text."""
    text = str(error)
    for pattern in (_USER_RAISED, _RAISED):
        if found := pattern.findall(text):
            last = found[-1]
            return last if isinstance(last, str) else ": ".join(last)
    return " ".join(text.split("JVM stacktrace")[0].split()) or type(error).__name__


def partitions(text: str) -> list[int]:
    """Numbers separated by commas."""
    try:
        return [_number(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{text!r} is not like 0,1") from None


def offsets(text: str) -> int | dict[int, int]:
    """One offset for all partitions, or `PARTITION:OFFSET` separated by commas."""
    try:
        if ":" not in text:
            return _number(text)
        pairs = [part.split(":") for part in text.split(",")]
        return {_number(partition): _number(offset) for partition, offset in pairs}
    except ValueError:
        raise ValueError(f"{text!r} is neither like 10 nor like 0:10,1:7") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise ValueError(text)
    return int(text)

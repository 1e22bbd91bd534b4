"""The parts that all jobs share: the common arguments, the session, the printed summary and the exit status."""

from __future__ import annotations

import argparse
import gc
import io
import logging
import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, NoReturn, TextIO, TypeVar

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from distlog.console import arguments
from distlog.console.output import DONE, FAILED, INTERRUPTED, Summary, fail, print_report
from distlog.console.streams import escape_what_cannot_be_encoded, open_closed_streams, show_warnings, write_whole
from distlog.core.errors import InvalidConfigError
from distlog.spark.spark_session import default_settings, session


class _JvmErrors(io.TextIOBase):
    """The standard error of the JVM: spark-submit sends a Python program's own to standard output."""

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise

    def write(self, text: str) -> int:
        try:
            SparkContext._ensure_initialized()
            jvm: Any = SparkContext._jvm
            jvm.java.lang.System.err.print(text)
        except Exception:  # each way in which a JVM can end raises another error
            self._otherwise.write(text)
        return len(text)


T = TypeVar("T")

#: An exception's name in a Python or Java stack trace, and the text after it on the same line.
_RAISED = re.compile(r"^\s*(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
_CAUSES = re.compile(r"^Caused by: (.+?)(?=\n\s+at |\Z)", re.MULTILINE | re.DOTALL)
_USER_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


class JobParser(argparse.ArgumentParser):
    """The parser of the program in `file`: for wrong arguments it prints the usage, and raises InvalidConfigError."""

    def __init__(self, file: str, description: str | None) -> None:
        super().__init__(Path(file).name, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Print the usage, and raise."""
        self.print_usage(sys.stderr)
        raise InvalidConfigError(message)


def job_parser(file: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of the job in `file`, with the arguments of every job: --topic, --storage and --json."""
    parser = JobParser(file, description)
    parser.add_argument("--topic", required=True, metavar="URL", help="the path or URL of the topic")
    add_shared_arguments(parser)
    return parser


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every job takes, for a topic or a root: --json and --storage."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    add_settings(parser, "--storage", "a setting of the storage client, as in endpoint_url=URL; may be repeated")


def add_settings(parser: argparse.ArgumentParser, name: str, about: str, *, twice: bool = False) -> None:
    """Add an argument NAME=VALUE that may be repeated, with other names, or `twice` with the same ones too."""
    parse, action = argument(arguments.setting), "append" if twice else _Setting
    parser.add_argument(name, action=action, default=[], type=parse, metavar="NAME=VALUE", help=about)


class _Setting(argparse.Action):
    """Gathers the settings of a command line, each of which is given once."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        pairs = [*getattr(namespace, self.dest), values]
        try:
            arguments.given_once(pairs)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, pairs)


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps `parse` for argparse: its ValueError becomes an error of the command line."""

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
    """Parse the arguments, do the work in a session, print its summary. Returns the exit status."""

    def run(chosen: argparse.Namespace) -> int:
        print_report(work(job_session(parser.prog), chosen), as_json=chosen.json)
        return DONE

    return exit_status(parser, run, given)


def exit_status(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], given: Sequence[str] | None
) -> int:
    """Parse the arguments and run a job, which returns its status."""
    if given is None:
        # a program of its own: none of what is imported will be garbage, and the last looks would take a third of the
        # CPU of a job without Spark
        gc.freeze()
        given = sys.argv[1:]
    open_closed_streams()
    write_whole()
    escape_what_cannot_be_encoded()
    show_warnings(parser.prog)
    # py4j logs stacks by the root logger itself: of an interrupt, and of a JVM that is gone, which it raises as well
    logging.getLogger().addFilter(_is_news)
    try:
        with redirect_stderr(_JvmErrors(sys.stderr) if "PYSPARK_GATEWAY_PORT" in os.environ else sys.stderr):
            try:
                return run(parser.parse_args(given))
            except Exception as error:
                return INTERRUPTED if _follows_an_interrupt(error) else _status_after(error, parser.prog, given)
    except KeyboardInterrupt:
        return INTERRUPTED


def _follows_an_interrupt(error: BaseException | None) -> bool:
    """True if an interrupt led to it: py4j fails to close the connection that it is still opening."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _status_after(error: Exception, program: str, given: Sequence[str]) -> int:
    if isinstance(error, BrokenPipeError) and _nobody_reads():
        return FAILED
    return fail(program, error, reason(error), as_json="--json" in given)


def _is_news(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], (KeyboardInterrupt, Py4JNetworkError)))


def _nobody_reads() -> bool:
    """True if it is standard output that is closed; Python flushes it once more at its end, which then works."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in output.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


#: The loggers of Spark that print the stack of a failed task or query, of which the job prints the reason. What a
#: cluster says, as of executors that do not start, is logged.
_FAILED_WORK = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql",
    "org.apache.spark.util.Utils",
)


def job_session(name: str) -> SparkSession:
    """The session of a job. Where its user chose no log level, the job's last line says why it failed."""
    is_ours = "spark.log.level" in default_settings()
    spark = session(name)
    for logger in _FAILED_WORK if is_ours else ():
        jvm: Any = SparkContext._jvm
        log4j = jvm.org.apache.logging.log4j
        # not before the session, which loads a configuration
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)
    return spark


def reason(error: BaseException) -> str:
    """The reason of a failure, on one line. From Spark's long stack traces it takes the innermost exception."""
    text = str(error)
    if "Cannot call methods on a stopped SparkContext" in text:
        return "Spark ended the application: the lines above say why"
    for pattern in (_USER_RAISED, _RAISED):
        if messages := pattern.findall(text):
            last = messages[-1]
            return last if isinstance(last, str) else ": ".join(last)
    head = re.split(r"JVM stacktrace|\n\s+at ", text)[0]
    # of Java's exceptions the last is the first that was raised
    causes = _CAUSES.findall(text)[-1:]
    return " ".join(" ".join([head, *causes]).split()) or type(error).__name__

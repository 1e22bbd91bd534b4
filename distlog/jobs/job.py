"""The common parts of all jobs: arguments, the session, the printed summary and the exit status."""

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
from typing import Any, NoReturn, TextIO, TypeVar

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from distlog.console import arguments
from distlog.console.output import FAILED, INTERRUPTED, SUCCESS, Summary, print_failure, print_report
from distlog.console.streams import buffer_lines, escape_unencodable_text, open_closed_streams, show_warnings
from distlog.core.errors import InvalidConfigError
from distlog.spark.spark_session import default_settings, session


class _JvmStderr(io.TextIOBase):
    """The standard error of the JVM, since spark-submit sends Python's own to standard output."""

    def __init__(self, stderr: TextIO) -> None:
        self._stderr = stderr

    def write(self, text: str) -> int:
        try:
            SparkContext._ensure_initialized()
            jvm: Any = SparkContext._jvm
            jvm.java.lang.System.err.print(text)
        except Exception:  # a JVM can end in many ways, each with its own error
            self._stderr.write(text)
        return len(text)


T = TypeVar("T")
#: An exception's name in a Python or Java stack trace, and the text after it on the same line.
_NAME_AND_MESSAGE = re.compile(r"^\s*(?:\w+\.)*(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)
#: The causes of a Java exception, without their stacks; and the text of `raise_error` in a query.
_CAUSES = re.compile(r"^Caused by: (.+?)(?=\n\s+at |\Z)", re.MULTILINE | re.DOTALL)
_USER_ERROR = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)


class JobParser(argparse.ArgumentParser):
    """Raises InvalidConfigError for wrong arguments, after printing the usage."""

    def __init__(self, program: str, description: str | None) -> None:
        super().__init__(program, description=description, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        raise InvalidConfigError(message)


def job_parser(program: str, description: str | None) -> argparse.ArgumentParser:
    """The parser of a job on one topic: --topic, and the arguments that every job takes."""
    parser = JobParser(program, description)
    parser.add_argument("--topic", required=True, metavar="URL", help="path or URL of the topic")
    add_shared_arguments(parser)
    return parser


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that every job takes, for a topic or a root: --json and --storage."""
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    add_settings(parser, "--storage", "set an option of the storage client, as in endpoint_url=URL; may be repeated")


def add_settings(parser: argparse.ArgumentParser, name: str, about: str, *, repeats_names: bool = False) -> None:
    """Add an option NAME=VALUE that may be repeated, with the same name only if `repeats_names`."""
    parse = argument(arguments.setting)
    action = "append" if repeats_names else _Setting
    parser.add_argument(name, action=action, default=[], type=parse, metavar="NAME=VALUE", help=about)


class _Setting(argparse.Action):
    """Collects the settings of a command line, whose names must differ."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, *_: Any) -> None:
        pairs = [*getattr(namespace, self.dest), values]
        try:
            arguments.check_unique_names(pairs)
        except ValueError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        setattr(namespace, self.dest, pairs)


def argument(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wrap `parse` for argparse: its ValueError becomes a usage error."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parsed


def run_job(
    parser: argparse.ArgumentParser,
    work: Callable[[SparkSession, argparse.Namespace], Summary],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse the arguments, do the work in a session, print its summary. Returns the exit status."""

    def run(options: argparse.Namespace) -> int:
        print_report(work(job_session(parser.prog), options), as_json=options.json)
        return SUCCESS

    return run_program(parser, run, argv)


def run_program(
    parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], argv: Sequence[str] | None
) -> int:
    """Parse the arguments and call `run`; print any error. Returns the exit status."""
    if argv is None:
        # at the exit of this process, a collection of all imported objects would take a third of its CPU time
        gc.freeze()
        argv = sys.argv[1:]
    open_closed_streams()
    buffer_lines()
    escape_unencodable_text()
    show_warnings(parser.prog)
    # py4j logs a traceback of an interrupt and of a lost JVM, although it also raises them
    logging.getLogger().addFilter(_should_log)
    try:
        with redirect_stderr(_JvmStderr(sys.stderr) if "PYSPARK_GATEWAY_PORT" in os.environ else sys.stderr):
            try:
                return run(parser.parse_args(argv))
            except Exception as error:
                if _follows_an_interrupt(error):
                    return INTERRUPTED
                if isinstance(error, BrokenPipeError) and _is_output_closed():
                    return FAILED
                return print_failure(parser.prog, error, reason(error), as_json="--json" in argv)
    except KeyboardInterrupt:
        return INTERRUPTED


def _follows_an_interrupt(error: BaseException | None) -> bool:
    """Return whether an interrupt caused the error, as when py4j was opening a connection."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def _should_log(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], (KeyboardInterrupt, Py4JNetworkError)))


def _is_output_closed() -> bool:
    """Return whether standard output is closed. If so, replace it, since Python flushes it at exit."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    is_closed = any(event & select.POLLERR for _, event in output.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return is_closed


#: Spark's loggers that print the stack of a failed task or query, whose reason the job prints. Other warnings of a
#: cluster, such as executors that do not start, are still logged.
_FAILURE_LOGGERS = (
    "org.apache.spark.api.python",
    "org.apache.spark.executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql",
    "org.apache.spark.util.Utils",
)


def job_session(name: str) -> SparkSession:
    """Return the session of a job, without the stacks of failed work unless the user has set a log level."""
    has_default_level = "spark.log.level" in default_settings()  # absent if the user has set it
    spark = session(name)
    for logger in _FAILURE_LOGGERS if has_default_level else ():
        jvm: Any = SparkContext._jvm
        log4j = jvm.org.apache.logging.log4j
        # set after the session starts, since the session loads a configuration
        log4j.core.config.Configurator.setLevel(logger, log4j.Level.OFF)
    return spark


def reason(error: BaseException) -> str:
    """Return the reason of a failure on one line, from the innermost exception of Spark's stack traces."""
    text = str(error)
    if "Cannot call methods on a stopped SparkContext" in text:
        return "Spark ended the application: the lines above say why"
    for pattern in (_USER_ERROR, _NAME_AND_MESSAGE):
        if messages := pattern.findall(text):
            innermost = messages[-1]
            return innermost if isinstance(innermost, str) else ": ".join(innermost)
    head = re.split(r"JVM stacktrace|\n\s+at ", text)[0]
    causes = _CAUSES.findall(text)[-1:]  # the last cause of a Java exception was raised first
    return " ".join(" ".join([head, *causes]).split()) or type(error).__name__

"""The Python that Spark is given for its workers: each is forked from a process that has imported what they use.

Spark starts Python for each step of planning, each stream and each kind of task. Each process would import distlog
and PySpark again, which takes a second of CPU, several for each query.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import signal
import socket
import sys

# The stub of a program imports little, without these or `typing`: half of its CPU.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from tempfile import TemporaryDirectory
    from types import FrameType

#: The imports of workers, without the modules that they run, and without distlog's, which inspect the running module.
IMPORTS = (
    "pandas",
    "pyspark.worker",
    "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.streaming.datasource",
    "s3fs",
)


def forked_python(*first: str) -> dict[str, str]:
    """Variables of the environment that name `python_of_spark`; the second is what the JVM looks for formats with."""
    return dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), python_of_spark(*first))


def python_of_spark(*first: str) -> str:
    """A program that is as Python, but has imported PySpark; it works as long as this process lives.

    It imports from the folders `first` before all others.
    """
    return f"{_served(first)[0].name}/python"


@functools.cache
def _served(first: tuple[str, ...]) -> tuple[TemporaryDirectory[str], socket.socket]:
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from forked_programs import start_server

    folder = TemporaryDirectory(prefix="distlog-python-")
    program, door = Path(folder.name) / "python", f"{folder.name}/door"
    program.write_text(f"#!/bin/sh\nexec '{sys.executable}' -IS '{__file__}' '{sys.executable}' '{door}' \"$@\"\n")
    program.chmod(0o755)
    return folder, start_server(door, IMPORTS, first)


def _main(python: str, door: str, *arguments: str) -> None:
    """Run a module or a text in a process that is forked for it, and end as it does; a file is run by Python."""
    if arguments[0] not in ("-m", "-c"):
        os.execv(python, [python, *arguments])
    status, its = socket.socketpair()
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    # one that comes before the program is known waits for it
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    request = {
        "text": arguments[1],
        "arguments": arguments[2:],
        "is_module": arguments[0] == "-m",
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "imports": [],
        "ends_with_starter": True,
    }
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.connect(door)
        socket.send_fds(way, [marshal.dumps(request)], [0, 1, 2, its.fileno()])
    program = int(status.recv(16, socket.MSG_WAITALL))

    def pass_on(number: int, _: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(program, number)

    for number in signals:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    ended = int(status.recv(16, socket.MSG_WAITALL) or 1)
    os._exit(ended if ended >= 0 else 128 - ended)


if __name__ == "__main__":
    _main(*sys.argv[1:])

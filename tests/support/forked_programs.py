"""Programs as processes of their own, forked from one that has imported distlog: 50 ms of CPU each, not a second.

The process ends as any Python does: an exception is printed, threads are waited for, what is registered for its exit
runs, and what the program held is let go; only the modules are not taken apart, which takes half a second. A test of
a start (options of the interpreter, imports, the installed command) needs `subprocess`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

#: The import of a program that serves a root.
GATEWAY = "loaded_gateway"


class Program:
    """A process that runs a text, `python -c text`, or a module, `python -m module`."""

    def __init__(
        self,
        text: str,
        *arguments: object,
        module: bool = False,
        stdin: IO[Any] | int | None = None,
        stdout: IO[Any] | int | None = None,
        stderr: IO[Any] | int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        imports: Sequence[str] = (),
        has_distlog: bool = True,
    ) -> None:
        """Start it; `subprocess.PIPE` for an input or output gives a stream of text, as there.

        What it `imports` besides distlog, later programs have too. One that has no distlog yet has numba. Sets of
        texts are in the order of a PYTHONHASHSEED in `env`.
        """
        self.args = [text, *map(str, arguments)]
        self.stdin: IO[str] | None = None
        self.stdout: IO[str] | None = None
        self.stderr: IO[str] | None = None
        self.returncode: int | None = None
        theirs, child_ends = list[int](), list[int]()
        for number, (name, file) in enumerate((("stdin", stdin), ("stdout", stdout), ("stderr", stderr))):
            if file == subprocess.PIPE:
                reader, writer = os.pipe()
                ours, other = (writer, reader) if name == "stdin" else (reader, writer)
                setattr(self, name, os.fdopen(ours, "w" if name == "stdin" else "r", encoding="utf-8"))
                theirs.append(other)
                child_ends.append(other)
            elif file == subprocess.DEVNULL:
                theirs.append(os.open(os.devnull, os.O_RDWR))
                child_ends.append(theirs[-1])
            else:
                child_ends.append(number if file is None else file if isinstance(file, int) else file.fileno())
        self._status, status = socket.socketpair()
        theirs.append(status.detach())
        request = {
            "text": text,
            "arguments": self.args[1:],
            "is_module": module,
            "environment": dict(os.environ if env is None else env),
            "folder": str(cwd or Path.cwd()),
            "imports": list(imports),
        }
        hash_seed = request["environment"].get("PYTHONHASHSEED", "random")
        server = _server(hash_seed) if has_distlog else _server_without_distlog()
        socket.send_fds(server, [marshal.dumps(request)], [*child_ends, theirs[-1]])
        for descriptor in theirs:
            os.close(descriptor)
        self.pid = int(self._read_status())

    def _read_status(self) -> bytes:
        status = self._status.recv(16, socket.MSG_WAITALL)
        assert len(status) == 16, "the process that forks programs has ended"
        return status

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, or the negative number of the signal that ended it."""
        if self.returncode is None:
            self._status.settimeout(timeout)
            try:
                self.returncode = int(self._read_status())
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._status.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask it to end, unless it has."""
        self.send_signal(signal.SIGTERM)

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Give it the end of its input, and return the rest of its outputs when it has ended."""
        if self.stdin is not None and not self.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(input or "")
                self.stdin.close()
        said = dict.fromkeys(("stdout", "stderr"), "")

        def read(name: str, file: IO[str]) -> None:
            with file:
                said[name] = file.read()

        outputs = [(name, file) for name in said if (file := getattr(self, name)) is not None and not file.closed]
        readers = [threading.Thread(target=read, args=output, daemon=True) for output in outputs]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return said["stdout"], said["stderr"]

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()


def command(*arguments: object, **options: Any) -> Program:
    from distlog.cli.app import COMMANDS

    modules = {f"distlog.cli.{text.module}" for text in COMMANDS.values()}
    gateway = [GATEWAY] if arguments[0] == "serve" else []
    return Program("distlog", *arguments, module=True, imports=[*sorted(modules), *gateway], **options)


def run(
    text: str, *arguments: object, input: str = "", timeout: float = 300, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as `subprocess.run` with its output and errors as text."""
    file = functools.partial(tempfile.TemporaryFile, "w+")
    with file() as source, file() as out, file() as err:
        source.write(input)
        source.seek(0)
        program = Program(text, *arguments, stdin=source, stdout=out, stderr=err, **options)
        try:
            status = program.wait(timeout)
        except subprocess.TimeoutExpired:
            program.kill()
            err.seek(0)
            raise AssertionError(f"it did not end in {timeout} s: {err.read()}") from None
        out.seek(0)
        err.seek(0)
        process = subprocess.CompletedProcess(program.args, status, out.read(), err.read())
    if check:
        assert status == 0, process.stderr
    return process


@functools.cache
def _server(hash_seed: str) -> socket.socket:
    return start_server(hash_seed=hash_seed)


@functools.cache
def _server_without_distlog() -> socket.socket:
    return start_server(imports=["loaded_numba"], has_distlog=False)


def start_server(
    door: str = "",
    imports: Sequence[str] = (),
    first: Sequence[str] = (),
    *,
    has_distlog: bool = True,
    hash_seed: str = "random",
) -> socket.socket:
    """The socket of a new process that forks, which ends with this one; it takes requests at the `door` as well.

    It imports from the folders `first` before all others.
    """
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    path = os.pathsep.join(filter(None, [*first, *sys.path]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": hash_seed}
    with its, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way_in:
        if door:
            way_in.bind(door)
        descriptors = its.fileno(), way_in.fileno()
        subprocess.Popen(
            [sys.executable, __file__, *map(str, descriptors), str(int(has_distlog)), *imports],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment,
            pass_fds=descriptors,
        )
    return ours


def import_what_programs_use() -> None:
    """With the kernels of an append and a read, and without a thread: none outlives a fork."""
    import fsspec.implementations.memory

    import distlog

    topic = distlog.create("memory://warm/topic", 1)
    topic.append([{"key": b"k", "value": b"v"}])
    assert len(list(topic.records(0))) == 1
    fsspec.implementations.memory.MemoryFileSystem.store.clear()
    fsspec.implementations.memory.MemoryFileSystem.pseudo_dirs[:] = [""]


def _next_request(control: socket.socket, door: socket.socket) -> dict[str, Any]:
    """Fork for each request; in the new process, what it is to run."""
    # by a descriptor that is readable after their end: the programs, and the pipes for their status
    programs = dict[int, tuple[int, int]]()
    # by a descriptor that is readable after their end: the starters whose programs end with them
    starters = dict[int, int]()
    while True:
        ready = select.select([control, door, *programs, *starters], [], [])[0][0]
        if ready in programs:
            program, status = programs.pop(ready)
            starters.pop(status, None)
            with contextlib.suppress(BrokenPipeError):
                os.write(status, b"%16d" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
            os.close(ready)
            os.close(status)
            continue
        if ready in starters:
            _kill(starters.pop(ready))
            continue
        message, files, _, _ = socket.recv_fds(ready, 1 << 20, 4)
        if not message:
            for program in starters.values():
                _kill(program)
            os._exit(0)
        request: dict[str, Any] = marshal.loads(message)
        for name in request["imports"]:
            importlib.import_module(name)
        # else each collection in a program would visit everything
        gc.freeze()
        if program := os.fork():
            *theirs, status = files
            for file in theirs:
                os.close(file)
            programs[os.pidfd_open(program)] = program, status
            # its starter may be killed
            if request.get("ends_with_starter"):
                starters[status] = program
            with contextlib.suppress(BrokenPipeError):
                os.write(status, b"%16d" % program)
            continue
        control.close()
        door.close()
        for ended, (_, status) in programs.items():
            os.close(ended)
            os.close(status)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, file in enumerate(files[:3]):
            os.dup2(file, number)
        for file in files:
            os.close(file)
        return request


def _kill(program: int) -> None:
    """Kill a program, and what it has forked too if it leads a group."""
    with contextlib.suppress(ProcessLookupError):
        is_leader = os.getpgid(program) == program
        (os.killpg if is_leader else os.kill)(program, signal.SIGKILL)


def _main() -> dict[str, Any]:
    """Serve requests, until this process is a new one that is to run a program."""
    control = socket.socket(fileno=int(sys.argv[1]))
    door = socket.socket(fileno=int(sys.argv[2]))
    # Ctrl-C of a terminal is for the tests, which end this process too
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # of the imports, looks for garbage would take a fifth
    gc.disable()
    if int(sys.argv[3]):
        import_what_programs_use()
    for name in sys.argv[4:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    request = _next_request(control, door)
    gc.enable()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = ["-c", *request["arguments"]]
    sys.path[0] = ""
    # the old ones remember what kind of files those were
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    return request


class _End:
    """The last thing that is done at exit, since it is the first that is registered."""

    def __init__(self) -> None:
        self.status = 0
        self.module = types.ModuleType("__main__")
        atexit.register(self._end)

    def _end(self) -> None:
        self.module.__dict__.clear()
        gc.collect()
        for file in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                file.flush()
        os._exit(self.status)

    def run(self, text: str, *, is_module: bool) -> None:
        """Run the program; how it ended is the status."""
        try:
            if is_module:
                runpy.run_module(text, run_name="__main__", alter_sys=True)
            else:
                sys.modules["__main__"] = self.module
                exec(compile(text, "<string>", "exec"), self.module.__dict__)
        except SystemExit as exit:
            if isinstance(exit.code, str):
                print(exit.code, file=sys.stderr)
            self.status = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
        except BaseException:
            traceback.print_exc()
            self.status = 1


if __name__ == "__main__":
    _end = _End()
    _request = _main()
    _end.run(_request["text"], is_module=_request["is_module"])

"""Several processes of one command: starts them, watches them, begins a dead one again, and ends them together.

They are forked. So none has to import and load everything again, which takes seconds, and no password becomes an
argument or part of an environment. For that this process must have no threads of its own.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from distlog.console.output import DONE, FAILED
from distlog.core.display import counted

#: Tells of an event: its name, a text for people, and its facts.
Tell = Callable[[str, str, Mapping[str, Any]], None]
#: Gives the text and the facts that tell of the beginning of all, from the facts that each process told.
Began = Callable[[Sequence[Mapping[str, Any]]], tuple[str, Mapping[str, Any]]]

STARTED, STOPPED = "started", "stopped"
#: A process that ends sooner after its beginning begins again later and later: after these pauses, by how often in a
#: row it did.
QUICK_S = 10.0
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
#: All end if none serves, and each did so as often.
_MOST_QUICK = 5
#: The pause after the system had no memory or no process for one that begins again.
_NO_FORK_PAUSE_S = 1.0
#: How long the processes may take to end: longer than a gateway gives itself.
_STOP_S = 15.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT)

# ---
# The end of a service.


@contextmanager
def ending_signals() -> Iterator[int]:
    """A file that can be read as soon as SIGTERM or SIGINT came, which do not end the process meanwhile.

    It is a pipe: a signal may reach any thread, and would not wake the main thread from a lock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def stopped(finished: bool) -> str:
    """The text for people about the end of a service."""
    return "stopped" if finished else "stopped; a request or a task was abandoned"


# ---
# One of the processes, as it sees itself.


@dataclass(frozen=True, slots=True)
class Child:
    """This process is one of those of a command: its `number` from 0 on, and the facts of the one `before` it."""

    number: int
    before: Mapping[str, Any]
    reports: int

    def tell(self, event: str, facts: Mapping[str, Any]) -> None:
        """Tell the parent that this process has STARTED, or STOPPED; `facts` are JSON."""
        # the parent may have been killed
        with suppress(BrokenPipeError):
            os.write(self.reports, json.dumps({"event": event, **facts}).encode() + b"\n")


def _end_without_parent(lifeline: int) -> None:
    """End this process as by SIGTERM when its parent is gone: nobody writes to the pipe, but for its end."""

    def watch() -> None:
        os.read(lifeline, 1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


# ---
# The parent: starts the processes, watches them, and ends them.


@dataclass(slots=True)
class _Process:
    """A process of the command, or its place while there is none (`pid` 0): then it is to begin at `begins_at`."""

    number: int
    begins_at: float = math.inf
    pid: int = 0
    reports: int = -1
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: When it told that it has begun.
    began_at: float | None = None
    has_ended: bool = False
    quick_ends: int = 0
    unread: bytes = b""

    @property
    def serves(self) -> bool:
        """True if it has begun, and not ended."""
        return bool(self.pid) and self.began_at is not None

    def read(self) -> list[Mapping[str, Any]]:
        """The reports since the last time; it `has_ended` if there can be no more."""
        data = os.read(self.reports, 1 << 16)
        *lines, self.unread = (self.unread + data).split(b"\n")
        self.has_ended = not data
        return [json.loads(line) for line in lines]


def run_processes(
    count: int,
    tell: Tell,
    began: Began,
    prepare: Callable[[], None] = lambda: None,
    clock: Callable[[], float] = time.monotonic,
) -> Child | int:
    """Run so many processes until SIGTERM or SIGINT. Returns twice: this process gets its exit status, at the end.

    Each of the processes gets the Child that it is, at once, and does the work; `tell` is called in this one, and
    `prepare` before all, for what they share. A process that ends begins again. If one ends before all have begun, or
    each again and again soon after its beginning, so that none is left, all end: the exit status is that of the last
    one, or FAILED. The first one begins alone, as it makes what all of them use, and an error that all would have is
    told once. Raises OSError if the system has no process for one at the start; later it is asked again and again.
    """
    # where the starter of this process had it ignored, the system tells of no child how it ended
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    lifeline, life = os.pipe()
    with ending_signals() as signalled:
        prepare()
        child = _Processes(count, signalled, tell, began, clock).run()
    if isinstance(child, Child):
        # nobody but the parent holds this end
        os.close(life)
        _end_without_parent(lifeline)
        # it has its own handlers of signals again
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    return child


class _Processes:
    def __init__(self, count: int, signalled: int, tell: Tell, began: Began, clock: Callable[[], float]) -> None:
        self._all = [_Process(number) for number in range(count)]
        self._signalled, self._tell, self._began, self._clock = signalled, tell, began, clock
        self._serves = False

    def run(self) -> Child | int:
        """As `run_processes`."""
        self._all[0].begins_at = self._clock()
        try:
            while True:
                ready = self._wait([self._signalled], min(process.begins_at for process in self._all))
                if self._signalled in ready:
                    finished = self._end()
                    self._tell(STOPPED, stopped(finished), {"finished": finished})
                    return DONE
                for process in self._all:
                    if process.reports in ready and (status := self._heard(process)) is not None:
                        self._end()
                        return status
                for process in self._all:
                    if process.begins_at <= self._clock() and (child := self._begin(process)) is not None:
                        return child
        except BaseException:
            self._end()
            raise

    def _begin(self, process: _Process) -> Child | None:
        try:
            return self._fork(process)
        except OSError as error:
            if not self._serves:
                raise
            process.begins_at = self._clock() + _NO_FORK_PAUSE_S
            again = f"it is tried again in {_NO_FORK_PAUSE_S:g} s"
            text = f"process {process.number} cannot begin again: {error}: {again}"
            self._tell("process-waits", text, {"process": process.number, "again_s": _NO_FORK_PAUSE_S})
            return None

    def _fork(self, process: _Process) -> Child | None:
        for stream in (sys.stdout, sys.stderr):
            # text that is left when nobody reads it, or the disk is full, must not keep the process from beginning
            with suppress(OSError):
                stream.flush()
        reports, writer = os.pipe()
        # a signal for the new process must not be taken by the handlers that are this one's
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        with warnings.catch_warnings():
            # the threads of libraries, as OpenBLAS's, know of forks
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                pid = os.fork()
            except OSError:
                signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
                os.close(reports)
                os.close(writer)
                raise
        if not pid:
            for each in (reports, *(other.reports for other in self._all if other.pid)):
                os.close(each)
            return Child(process.number, process.facts, writer)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.close(writer)
        process.pid, process.reports, process.began_at, process.begins_at = pid, reports, None, math.inf
        return None

    def _wait(self, others: Iterable[int], until: float) -> set[int]:
        """Wait until a process tells something or ends, or one of the `others` can be read."""
        ready = select.poll()
        for each in (*others, *(process.reports for process in self._all if process.pid)):
            ready.register(each, select.POLLIN)
        timeout_ms = None if until == math.inf else max(0, math.ceil(1000 * (until - self._clock())))
        return {number for number, _ in ready.poll(timeout_ms)}

    def _heard(self, process: _Process) -> int | None:
        """Take what a process tells; returns the exit status if all must end now."""
        for report in process.read():
            if report["event"] == STARTED:
                process.facts = {name: value for name, value in report.items() if name != "event"}
                process.began_at = self._clock()
                if self._serves:
                    text = f"process {process.number} (pid {process.pid}) has begun again"
                    self._tell("process-started", text, _facts(process))
                elif all(each.began_at is not None for each in self._all):
                    self._serves = True
                    self._tell(STARTED, *self._began([_facts(each) for each in self._all]))
                elif process.number == 0:
                    for each in self._all[1:]:
                        each.begins_at = self._clock()
        return self._ended(process) if process.has_ended else None

    def _ended(self, process: _Process) -> int | None:
        """A process has ended: it begins again, or all must end, with the exit status that is returned."""
        pid, status = process.pid, self._reaped(process)
        how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
        text = f"process {process.number} (pid {pid}) {how}"
        facts: Mapping[str, Any] = {"process": process.number, "pid": pid, "status": status}
        now, began_at = self._clock(), process.began_at
        lived = began_at is not None and now >= began_at + QUICK_S
        process.quick_ends = 0 if lived else process.quick_ends + 1
        if not self._serves and status > 0:
            # it has told why
            return status
        if not self._serves or self._are_hopeless:
            why = f", {counted(process.quick_ends, 'time')} soon after its beginning" if self._serves else ""
            self._tell("process-ended", f"{text}{why}: all processes end", {**facts, "again_s": None})
            return max(status, FAILED)
        pause_s = _PAUSES_S[min(process.quick_ends, len(_PAUSES_S) - 1)]
        process.begins_at = now + pause_s
        self._tell("process-ended", f"{text}: it begins again in {pause_s:g} s", {**facts, "again_s": pause_s})
        return None

    @property
    def _are_hopeless(self) -> bool:
        # one that cannot begin, as its port was taken meanwhile, must not end those that serve
        return not any(each.serves for each in self._all) and all(
            each.quick_ends >= _MOST_QUICK for each in self._all
        )

    def _reaped(self, process: _Process) -> int:
        os.close(process.reports)
        status = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])
        process.pid, process.reports, process.unread = 0, -1, b""
        return status

    def _end(self) -> bool:
        """Have all processes end, by force if they do not; False if one did not finish its work."""
        end, finished = self._clock() + _STOP_S, True
        self._signal(signal.SIGTERM)
        while any(process.pid for process in self._all):
            if self._clock() >= end:
                self._signal(signal.SIGKILL)
                end, finished = math.inf, False
            ready = self._wait((), end)
            for process in self._all:
                if process.reports in ready:
                    finished = all(report.get("finished", True) for report in process.read()) and finished
                    if process.has_ended:
                        self._reaped(process)
        return finished

    def _signal(self, number: int) -> None:
        for process in self._all:
            if process.pid:
                os.kill(process.pid, number)


def _facts(process: _Process) -> Mapping[str, Any]:
    return {"process": process.number, "pid": process.pid, **process.facts}

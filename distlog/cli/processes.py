"""The end of a service by a signal, and several processes of one command, which end together."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distlog.console.output import DONE, FAILED

_PARENT_CHECK_S = 0.5
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@contextmanager
def ending_signals() -> Iterator[int]:
    """Yield a file that can be read after SIGTERM or SIGINT, which don't end the process in this block."""
    # a pipe, since a signal may reach any thread, and would not wake the main thread from a lock
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield reader
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)


def fork_processes(count: int) -> int:
    """Fork `count` processes, and return its number in each; this one exits with them, and ends them."""
    # where the starter of this process ignores it, the system keeps no exit status
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent, pids = os.getpid(), list[int]()
    for number in range(count):
        try:
            with warnings.catch_warnings():
                # the threads of libraries, as OpenBLAS's, survive forks
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            _end(pids)
            raise
        if not pid:
            threading.Thread(target=_end_after, args=(parent,), name="parent-watch", daemon=True).start()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
            return number
        pids.append(pid)
    status = _wait(pids)
    _end(pids)
    os._exit(status)


def _wait(pids: list[int]) -> int:
    """The exit status after a signal, or the end of a process, which leaves `pids`."""
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD:
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
        # none has ended if one was stopped
        if pid:
            number = pids.index(pid)
            status = os.waitstatus_to_exitcode(wait_status)
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            print(f"distlog: process {number} (pid {pid}) {how}; all processes stop", file=sys.stderr, flush=True)
            pids.remove(pid)
            return max(status, FAILED)
    return DONE


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _end_after(parent: int) -> None:
    """End this process by SIGTERM after its parent."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)

"""Stops a service at a signal, and runs several processes that stop together."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from distlog.console.output import FAILED, SUCCESS

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
    """Fork `count` processes and return the number of the process in each; the parent exits with them."""
    # a parent process may ignore SIGCHLD, which drops exit statuses
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    parent, pids = os.getpid(), list[int]()
    for number in range(count):
        try:
            with warnings.catch_warnings():
                # threads of libraries such as OpenBLAS survive a fork
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
    """Wait for a signal, or for a process to end, which leaves `pids`; returns the exit status."""
    while signal.sigwait(_SIGNALS) == signal.SIGCHLD:
        pid, wait_status = os.waitpid(-1, os.WNOHANG)
        # 0 if a process was only stopped
        if pid:
            number = pids.index(pid)
            status = os.waitstatus_to_exitcode(wait_status)
            how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
            print(f"distlog: process {number} (pid {pid}) {how}; all processes stop", file=sys.stderr, flush=True)
            pids.remove(pid)
            return max(status, FAILED)
    return SUCCESS


def _end(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    for pid in pids:
        os.waitpid(pid, 0)


def _end_after(parent: int) -> None:
    """Send SIGTERM to this process after its parent has ended."""
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)

"""Runs a LogManager until a signal ends it, and prints what its tasks do."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from distlog.cli.input.incoming import is_readable
from distlog.console.metrics_server import metrics_server
from distlog.console.report import DONE, FAILED, Summary, print_report
from distlog.console.status_line import StatusLine
from distlog.core.display.units import counted, size_text
from distlog.core.log_manager.log_manager import LogManager
from distlog.core.log_manager.task_run import TaskRun

_REDRAW_S = 1.0


class Service:
    """A LogManager of `roots`, and its output: text for people, or JSON lines. Raises what LogManager raises."""

    def __init__(
        self, roots: Sequence[str], settings: Mapping[str, object], storage: Mapping[str, Any], *, as_json: bool
    ) -> None:
        self._as_json, self._runs = as_json, list[TaskRun]()
        self._manager = LogManager(roots, config=settings, storage_options=storage, on_run=self._told)
        self._line = StatusLine("distlog", self._status)
        self._keeps_runs = False

    def run_once(self) -> int:
        """Run each task once, and print one report. Returns the exit status."""
        self._keeps_runs = True
        with self._warnings_shown():
            ok = self._manager.run_once()
        text = "\n".join([*(str(run) for run in self._runs if says_something(run)), self._status()])
        runs = [run.to_dict() for run in self._runs]
        print_report(Summary(text, {"ok": ok, "runs": runs}), as_json=self._as_json)
        return DONE if ok else FAILED

    def run(self, metrics_port: int | None = None) -> int:
        """Run the tasks until SIGTERM or SIGINT. Returns the exit status.

        A task that does not end soon is abandoned, and the process ends at once: no other thread may hold it up.
        """
        server = nullcontext(None) if metrics_port is None else metrics_server(metrics_port, self._manager.metrics)
        with self._warnings_shown(), server as port, ending_signals() as signalled:
            self._event("started", "running", roots=self._manager.roots, metrics_port=port)
            self._manager.start()
            while not signalled(_REDRAW_S if self._line.is_visible else None):
                self._line.draw()
            ended = self._manager.stop()
            self._line.clear()
            self._event("stopped", "stopped" if ended else "stopped; a task was abandoned", finished=ended)
            if not ended:
                sys.stdout.flush()
                os._exit(DONE)
        return DONE

    def _told(self, run: TaskRun) -> None:
        if self._keeps_runs:
            self._runs.append(run)
        elif says_something(run):
            self._event("run", str(run), **run.to_dict())

    def _event(self, name: str, text: str, **facts: object) -> None:
        if self._as_json:
            self._line.print_json({"event": name, **facts})
        else:
            self._line.print(f"{text}: {', '.join(self._manager.roots)}" if name == "started" else text)

    def _status(self) -> str:
        """What the manager has, and what fails."""
        values = {metric.name: [value for _, value in metric.values] for metric in self._manager.metrics()}
        sizes = values["distlog_log_size_bytes"]
        text = f"{counted(int(sum(values['distlog_topics'])), 'topic')}, {counted(len(sizes), 'partition')}"
        failing = sorted({url for errors in self._manager.errors.values() for url in errors})
        return f"{text}, {size_text(sum(sizes))}; {'failing: ' + ', '.join(failing) if failing else 'all well'}"

    @contextmanager
    def _warnings_shown(self) -> Iterator[None]:
        logger = logging.getLogger("distlog")
        logger.addHandler(self._line)
        try:
            yield
        finally:
            logger.removeHandler(self._line)


def says_something(run: TaskRun) -> bool:
    """Whether a run did something, or failed."""
    return bool(run.errors) or any(run.done.values())


@contextmanager
def ending_signals() -> Iterator[Callable[[float | None], bool]]:
    """Waits for SIGTERM or SIGINT, which do not end the process meanwhile: True if one came within some seconds.

    A pipe tells of them: a signal may reach any thread, and would not wake the main thread from a lock.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda timeout_s: is_readable(reader, timeout_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup)
        os.close(reader)
        os.close(writer)

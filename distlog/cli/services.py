"""Runs a LogManager or a gateway until a signal ends it, prints its events, and serves its metrics."""

from __future__ import annotations

import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from distlog.cli.input import is_readable
from distlog.cli.processes import ending_signals
from distlog.console.output import FAILED, SUCCESS, StatusLine, Summary, print_report
from distlog.console.streams import drop_what_cannot_be_written
from distlog.core.display import counted, size_text
from distlog.core.errors import StorageError
from distlog.core.log_manager.log_manager import LogManager, Metric
from distlog.core.log_manager.log_tasks import TaskRun
from distlog.core.optional import extra, optional
from distlog.core.storage.parallel import begin

if TYPE_CHECKING:
    from prometheus_client import Metric as PrometheusMetric

    # an extra, which takes as long to import as the library; commands other than `serve` do without
    from distlog.gateway.cluster import Maintenance
    from distlog.gateway.gateway_server import GatewayServer

#: The address that only this machine reaches.
LOOPBACK = "127.0.0.1"


def raise_open_files() -> int:
    """Raise the process's limit of open files (ulimit -n) to the hard limit, as Java does; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def end(status: int) -> NoReturn:
    """Flush the output and exit with `os._exit`: interpreter shutdown takes a second of CPU."""
    drop_what_cannot_be_written()
    os._exit(status)


def keep_what_is_loaded() -> None:
    """Enable garbage collection, but exclude the objects that a service has loaded."""
    gc.freeze()
    gc.enable()


_REDRAW_S = 1.0


class Service:
    """A LogManager of `roots`, and its output: text for people, or JSON lines. Raises as LogManager does."""

    def __init__(
        self, roots: Sequence[str], settings: Mapping[str, object], storage: Mapping[str, Any], *, as_json: bool
    ) -> None:
        self._as_json, self._runs = as_json, list[TaskRun]()
        self._manager = LogManager(roots, config=settings, storage_options=storage, on_run=self._print_run)
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
        return SUCCESS if ok else FAILED

    def run(self, metrics_at: tuple[str, int] | None = None) -> int:
        """Run the tasks until SIGTERM or SIGINT, and serve metrics at an address. Returns the exit status."""
        server = _served(metrics_at, self._manager.metrics)
        with self._warnings_shown(), server as port, ending_signals() as signalled:
            self._event("started", "running", roots=self._manager.roots, metrics_port=port)
            self._manager.start()
            while not is_readable(signalled, _REDRAW_S if self._line.is_visible else None):
                self._line.draw()
            finished = self._manager.stop()
            self._line.clear()
            self._event("stopped", "stopped" if finished else "stopped; a task was abandoned", finished=finished)
            if not finished:
                end(SUCCESS)
        drop_what_cannot_be_written()
        return SUCCESS

    def _print_run(self, run: TaskRun) -> None:
        if self._keeps_runs:
            self._runs.append(run)
        elif says_something(run):
            self._event("run", str(run), **run.to_dict())

    def _event(self, name: str, text: str, **fields: object) -> None:
        shown = f"{text}: {', '.join(self._manager.roots)}" if name == "started" else text
        print_event(self._line, name, shown, fields, as_json=self._as_json)

    def _status(self) -> str:
        """Return the number of topics and the failing tasks."""
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
    """Return whether a run did something, or failed."""
    return bool(run.errors) or any(run.done.values())


#: Makes the tasks that maintain the root; its argument is called with their runs.
Maintain = Callable[[Callable[[TaskRun], None]], "Maintenance"]


def _served(where: tuple[str, int] | None, metrics: Callable[[], list[Metric]]) -> AbstractContextManager[int | None]:
    """Serves metrics at an address, if there is one; yields the port."""
    return nullcontext(None) if where is None else metrics_server(where[1], metrics, where[0])


#: How long a thread may compute before another thread runs; Python's default is 5 ms.
_TURN_S = 0.0005


def serve(
    gateway: GatewayServer,
    maintain: Maintain | None,
    metrics_at: tuple[str, int] | None,
    *,
    as_json: bool,
    process: int | None = None,
) -> NoReturn:
    """Serve until SIGTERM or SIGINT, answer the requests in flight, and end the process."""
    from distlog.gateway.gateway_server import warm_up

    line = StatusLine("distlog" if process is None else f"distlog[{process}]", lambda: gateway.status)
    # several processes cannot share the last line of a terminal
    line.is_visible = line.is_visible and process is None
    tasks = maintain(partial(_print_run, line, as_json)) if maintain else None
    measured = (lambda: [*gateway.metrics(), *tasks.metrics()]) if tasks else gateway.metrics
    identity = {} if process is None else {"process": process, "pid": os.getpid()}
    logger = logging.getLogger("distlog")
    logger.addHandler(line)
    try:
        with _served(metrics_at, measured) as port, ending_signals() as signalled:
            # a thread that computes must not delay each step of another thread by 5 ms
            sys.setswitchinterval(_TURN_S)
            # the start waits for the storage most of the time
            warming = begin(warm_up)

            def joined() -> None:
                warming.wait()
                keep_what_is_loaded()
                fields = {**identity, "root": gateway.root, "listen": gateway.address, "metrics_port": port}
                print_event(line, "started", f"serving {gateway.root} at {gateway.address}", fields, as_json=as_json)

            gateway.start(joined, lambda: is_readable(signalled, 0))
            # its tasks print lines, so after this: the first line is the address
            if tasks:
                tasks.start()
            while not is_readable(signalled, _REDRAW_S if line.is_visible else None):
                line.draw()
            finished = all([tasks is None or tasks.stop(), gateway.stop()])
            line.clear()
            text = "stopped" if finished else "stopped; a request or a task was abandoned"
            print_event(line, "stopped", text, {**identity, "finished": finished}, as_json=as_json)
    finally:
        logger.removeHandler(line)
    end(SUCCESS)


def _print_run(line: StatusLine, as_json: bool, run: TaskRun) -> None:
    if says_something(run):
        print_event(line, "run", str(run), run.to_dict(), as_json=as_json)


def print_event(line: StatusLine, name: str, text: str, fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print an event of a gateway: the text, or a JSON object."""
    if as_json:
        line.print_json({"event": name, **fields})
    else:
        line.print(text)


@contextmanager
def metrics_server(port: int, metrics: Callable[[], list[Metric]], host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the result of `metrics` at the address `host`; yields the port, a free one for 0."""
    prometheus = optional("prometheus_client", "--metrics-port", extra("metrics"))
    registry = prometheus.CollectorRegistry()
    registry.register(_Collector(metrics))
    try:
        server, thread = prometheus.start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise StorageError(f"cannot serve metrics: {error.strerror or error}", port=port) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """The collector that prometheus-client calls at each request."""

    def __init__(self, metrics: Callable[[], list[Metric]]) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[PrometheusMetric]:
        """Return nothing: metrics exist after the first runs of the tasks."""
        return ()

    def collect(self) -> Iterator[PrometheusMetric]:
        """Yield the current metrics."""
        from prometheus_client import Metric as PrometheusMetric

        for metric in self._metrics():
            family = PrometheusMetric(metric.name, metric.meaning, metric.kind)
            suffix = "_total" if metric.kind == "counter" else ""
            for labels, value in metric.values:
                family.add_sample(metric.name + suffix, dict(labels), value)
            yield family

"""Runs a gateway until a signal ends it, and prints what it does."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from distlog.cli.services.service import ending_signals, says_something
from distlog.console.metrics_server import metrics_server
from distlog.console.report import DONE
from distlog.console.status_line import StatusLine
from distlog.core.log_manager.task_run import TaskRun
from distlog.gateway.cluster.maintenance import Maintenance
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.warm_up import warm_up

_REDRAW_S = 1.0

#: Makes the tasks that maintain the root; their runs are told to what it gets.
Maintain = Callable[[Callable[[TaskRun], None]], Maintenance]


def serve(gateway: GatewayServer, maintain: Maintain | None, *, metrics_port: int | None, as_json: bool) -> int:
    """Serve until SIGTERM or SIGINT, then answer what is under way. Returns the exit status.

    `maintain` makes the tasks that run meanwhile. What does not end soon is abandoned, and the process ends at once.
    """
    line = StatusLine("distlog", lambda: gateway.status)
    tasks = maintain(partial(_told, line, as_json)) if maintain else None
    measured = (lambda: [*gateway.metrics(), *tasks.metrics()]) if tasks else gateway.metrics
    metrics = nullcontext(None) if metrics_port is None else metrics_server(metrics_port, measured)
    logger = logging.getLogger("distlog")
    logger.addHandler(line)
    try:
        with metrics as port, ending_signals() as signalled:
            warm_up()
            gateway.start()
            facts = {"root": gateway.root, "listen": gateway.address, "metrics_port": port}
            _event(line, "started", f"serving {gateway.root} at {gateway.address}", as_json=as_json, **facts)
            # its tasks tell of themselves, so after this: the first line is where it listens
            if tasks:
                tasks.start()
            while not signalled(_REDRAW_S if line.is_visible else None):
                line.draw()
            finished = tasks.stop() if tasks else True
            finished = gateway.stop() and finished
            line.clear()
            text = "stopped" if finished else "stopped; a request or a task was abandoned"
            _event(line, "stopped", text, as_json=as_json, finished=finished)
    finally:
        logger.removeHandler(line)
    if not finished:
        sys.stdout.flush()
        os._exit(DONE)
    return DONE


def _told(line: StatusLine, as_json: bool, run: TaskRun) -> None:
    if says_something(run):
        _event(line, "run", str(run), as_json=as_json, **run.to_dict())


def _event(line: StatusLine, name: str, text: str, *, as_json: bool, **facts: object) -> None:
    if as_json:
        line.print_json({"event": name, **facts})
    else:
        line.print(text)

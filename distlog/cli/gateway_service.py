"""Runs a gateway until a signal ends it, and prints what it does."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import nullcontext

from distlog.cli.service import ending_signals
from distlog.console.metrics_server import metrics_server
from distlog.console.report import DONE
from distlog.console.status_line import StatusLine
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.warm_up import warm_up

_REDRAW_S = 1.0


def serve(gateway: GatewayServer, *, metrics_port: int | None, as_json: bool) -> int:
    """Serve until SIGTERM or SIGINT, then answer what is under way. Returns the exit status.

    What does not end soon is abandoned, and the process ends at once.
    """
    line = StatusLine("distlog", lambda: gateway.status)
    metrics = nullcontext(None) if metrics_port is None else metrics_server(metrics_port, gateway.metrics)
    logger = logging.getLogger("distlog")
    logger.addHandler(line)
    try:
        with metrics as port, ending_signals() as signalled:
            warm_up()
            gateway.start()
            facts = {"root": gateway.root, "listen": gateway.address, "metrics_port": port}
            _event(line, "started", f"serving {gateway.root} at {gateway.address}", as_json=as_json, **facts)
            while not signalled(_REDRAW_S if line.is_visible else None):
                line.draw()
            finished = gateway.stop()
            line.clear()
            text = "stopped" if finished else "stopped; a request was abandoned"
            _event(line, "stopped", text, as_json=as_json, finished=finished)
    finally:
        logger.removeHandler(line)
    if not finished:
        sys.stdout.flush()
        os._exit(DONE)
    return DONE


def _event(line: StatusLine, name: str, text: str, *, as_json: bool, **facts: object) -> None:
    if as_json:
        line.print_json({"event": name, **facts})
    else:
        line.print(text)

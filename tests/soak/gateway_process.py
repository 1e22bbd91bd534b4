"""A gateway in a process of its own, for campaigns that kill it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from soak.tally import demand

SESSION_MS = 2000


class GatewayProcess:
    """A gateway over `root` in a process, always at the same port."""

    def __init__(self, root: str, options: Mapping[str, Any], session_ms: int = SESSION_MS) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:{1}".format(*free.getsockname())
        self._session_ms = session_ms
        settings = [f"broker.session.timeout.ms={session_ms}", "group.initial.rebalance.delay.ms=100"]
        self._command = [sys.executable, "-m", "distlog.cli", "serve", "--root", root, "--json", "--linger-ms", "20"]
        self._command += ["--listen", self.address]
        self._command += [part for each in settings for part in ("--config", each)]
        self._command += [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
        self.begin()

    def begin(self) -> None:
        """Start it; it listens when this returns."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        demand(json.loads(self._process.stdout.readline())["event"] == "started", "the gateway did not begin")

    def kill(self) -> None:
        """Kill it (kill -9)."""
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    @property
    def session_s(self) -> float:
        """How long the others wait for it."""
        return self._session_ms / 1000

    def end(self) -> None:
        """End it by SIGTERM, as a service is ended."""
        self._process.terminate()
        demand(self._process.wait(60) == 0, "the gateway did not end")

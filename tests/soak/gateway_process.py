"""A gateway in its own process, for campaigns that kill it."""

from __future__ import annotations

import json
import os
import random
import resource
import socket
import subprocess
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from forked_programs import command

from soak.tally import demand

SESSION_MS = 2000


def _free_port() -> int:
    """Return a port outside of the system's range, so that no connection takes it while the gateway is down."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with suppress(OSError), socket.socket() as listener:
            listener.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class GatewayProcess:
    """A gateway over `root`, always at the same port. Its standard error goes to the file `log`."""

    def __init__(
        self, root: str, options: Mapping[str, Any], session_ms: int = SESSION_MS, log: Path | None = None
    ) -> None:
        self.address = f"127.0.0.1:{_free_port()}"
        self._session_ms, self._log = session_ms, log
        settings = [f"broker.session.timeout.ms={session_ms}", "group.initial.rebalance.delay.ms=100"]
        self._arguments = ["serve", "--root", root, "--json", "--linger-ms", "20", "--listen", self.address]
        self._arguments += [part for setting in settings for part in ("--config", setting)]
        self._arguments += [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
        self.begin()

    def begin(self) -> None:
        """Start the gateway, and wait until it listens."""
        with nullcontext() if self._log is None else open(self._log, "a") as errors:
            self._process = command(*self._arguments, stdout=subprocess.PIPE, stderr=errors)
        assert self._process.stdout is not None
        demand(json.loads(self._process.stdout.readline())["event"] == "started", "the gateway did not begin")

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: int) -> None:
        os.kill(self._process.pid, number)

    @property
    def memory_bytes(self) -> int:
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    @property
    def open_sockets(self) -> int:
        sockets, folder = 0, Path(f"/proc/{self._process.pid}/fd")
        for path in folder.iterdir():
            # a concurrent close
            with suppress(FileNotFoundError):
                sockets += os.readlink(path).startswith("socket:")
        return sockets

    @property
    def session_s(self) -> float:
        """The time after which other gateways take over."""
        return self._session_ms / 1000

    def end(self) -> None:
        """End it with SIGTERM, like a service."""
        self._process.terminate()
        demand(self._process.wait(300) == 0, "the gateway did not end")

"""One of the gateways of a root: its id, where clients find it, and its name in the gateways' group."""

from __future__ import annotations

import ipaddress
import platform
import re
from collections.abc import Collection
from dataclasses import dataclass

_NAME = re.compile(
    r"gateway (?P<id>[0-9]{1,9}) at (?P<host>\S{1,255}):(?P<port>[0-9]{1,5}) on (?P<machine>\S{1,255})"
)


@dataclass(frozen=True, slots=True)
class Node:
    """A gateway as clients see it, a broker; `machine` tells whose loopback addresses its own are."""

    id: int
    host: str
    port: int
    machine: str

    def __str__(self) -> str:
        return f"gateway {self.id} at {self.host}:{self.port} on {self.machine}"

    @classmethod
    def parse(cls, name: str) -> Node | None:
        """The gateway with this name; None if it is no gateway's."""
        found = _NAME.fullmatch(name)
        if found is None or int(found["port"]) > 65535:
            return None
        return cls(int(found["id"]), found["host"], int(found["port"]), found["machine"])

    @property
    def place(self) -> tuple[str, int, str]:
        """Where it is: two processes cannot both listen there."""
        return self.host, self.port, self.machine

    def is_reached_from(self, machine: str) -> bool:
        """Whether the clients of a gateway on `machine` can reach it: a loopback address is of one machine."""
        return self.machine == machine or not _is_loopback(self.host)


def this_machine() -> str:
    """The name of this machine, without spaces."""
    return re.sub(r"\s", "-", platform.node())[:255] or "localhost"


def advertised(host: str, port: int) -> tuple[str, int]:
    """Where others reach who listens at `host`: by the machine's name, if that is all addresses."""
    is_any = host in {"0.0.0.0", "::", ""}
    return (this_machine() if is_any else host), port


def free_id(taken: Collection[int]) -> int:
    """The lowest id that no gateway has."""
    return next(number for number in range(len(taken) + 1) if number not in taken)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"

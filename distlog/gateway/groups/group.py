"""A group of a gateway: its members, its positions, and the lock that both stand behind."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from math import inf

from distlog.gateway.groups.members.classic_group import ClassicGroup
from distlog.gateway.groups.offsets.positions import Positions


@dataclass(slots=True)
class Group:
    """A group with its positions. `is_gone`: it was forgotten, and whoever waited for its lock looks again."""

    membership: ClassicGroup
    positions: Positions
    lock: threading.RLock = field(default_factory=threading.RLock)
    is_gone: bool = False
    #: When the timer looks at it next, as far as that is in its queue.
    wakes_at: float = inf

"""The race of writers for the next version: how long a writer waits after it lost.

The winner's commit says how long it had tried. A writer that has tried for less than usual waits; one that has tried
for longer does not. So many writers roughly take turns without talking to each other. With few writers none tries for
long, so none waits.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from distlog.core.commits.format.commit import Commit
from distlog.core.errors import CommitConflictError

MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})
# Longest usual pause, in seconds. It is short and does not grow, or else the latest writer would win. Maintenance
# waits longer, so that appends win.
PAUSE_S = 0.05
MAINTENANCE_PAUSE_S = 1.0
# The part of the usual time to try after which one's own turn comes. Were it all, nobody would try at some times.
TURN = 0.6
#: The longest wait for a turn, whatever commits say.
LONGEST_TURN_S = 5.0
# If others try for no longer than this, in seconds, writers do not take turns: it would cost more than it gives.
_SHORT_S = 0.5
_PROBES = 4


class Race:
    """The tries of one commit, for `timeout_s` seconds from now; `clock` and `sleep` are in seconds."""

    def __init__(
        self,
        operation: str,
        timeout_s: float,
        *,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        random: Random,
    ) -> None:
        self._is_maintenance = operation in MAINTENANCE
        self._clock, self._sleep, self._random = clock, sleep, random
        self._start = clock()
        self._end = self._start + timeout_s
        self._losses, self._winners_s = 0, 0.0

    def left_s(self) -> float:
        """The time left for tries, in seconds."""
        return self._end - self._clock()

    def waited_ms(self) -> int:
        """How long this writer has tried, in ms; 0 until another writer was first."""
        return int((self._clock() - self._start) * 1000) if self._losses else 0

    def probes(self) -> int:
        """How many versions to read at once: with many writers, several commits follow the winner's."""
        return 1 if self._losses < 2 else _PROBES

    def lost_to(self, winner: Commit) -> None:
        """Wait before the next try; raises CommitConflictError when no time is left for one."""
        now = self._clock()
        if now >= self._end:
            raise CommitConflictError("nothing was committed: other commits came first until the deadline; try again")
        self._losses += 1
        self._winners_s += winner.waited_ms / 1000
        self._sleep(min(self._pause_s(now - self._start), self._end - now))

    def _pause_s(self, waited_s: float) -> float:
        if self._is_maintenance:
            return self._random.uniform(0, MAINTENANCE_PAUSE_S)
        usual_s = self._winners_s / self._losses
        if usual_s <= _SHORT_S:
            return self._random.uniform(0, PAUSE_S)
        turn_s = min(TURN * usual_s, LONGEST_TURN_S)
        if waited_s < turn_s:
            return self._random.uniform(0.5, 1) * (turn_s - waited_s)
        return 0.0 if waited_s > usual_s else self._random.uniform(0, PAUSE_S)

"""How long a writer waits after a lost race for the next version."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from distlog.core.commits.commit_json import Commit
from distlog.core.errors import CommitConflictError

#: How long a commit races with others, in seconds.
TIMEOUT_S = 600.0
MAINTENANCE = frozenset({"retention", "compact", "rebuild", "gc"})
#: The longest usual pause, in seconds. It is short and does not grow, or else the latest writer would win.
PAUSE_S = 0.05
#: Maintenance waits longer, so that appends win.
MAINTENANCE_PAUSE_S = 1.0
#: The share of the usual time to try after which a writer's turn comes. At 1 there were times when nobody tries.
TURN = 0.6
#: The longest wait for a turn.
LONGEST_TURN_S = 5.0
#: If others try for no longer than this, in seconds, writers take no turns: it would cost more than it saves.
_SHORT_S = 0.5
_PROBES = 4


class RaceBackoff:
    """How long a writer waits after a lost race, and when it gives up, `timeout_s` seconds from now.

    The winner's commit says how long it had tried. A writer that has tried for less than usual waits; one that has
    tried for longer does not. So writers roughly take turns without talking to each other. If there are few, none
    tries for long, and none waits. `clock` and `sleep` are in seconds.
    """

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

    def try_for(self, timeout_s: float) -> None:
        """Give up `timeout_s` seconds from now."""
        self._end = self._clock() + timeout_s

    def left_s(self) -> float:
        """The time left for tries, in seconds."""
        return self._end - self._clock()

    def waited_ms(self) -> int:
        """The time for which this writer has tried, in ms; 0 until another writer was first."""
        return int((self._clock() - self._start) * 1000) if self._losses else 0

    def probes(self) -> int:
        """The number of versions to read at once: with many writers, several commits follow the winner's."""
        return 1 if self._losses < 2 else _PROBES

    def lost_to(self, winner: Commit) -> None:
        """Note a lost race; raises CommitConflictError when no time is left for another try."""
        self.check_time()
        self._losses += 1
        self._winners_s += winner.waited_ms / 1000

    def check_time(self) -> None:
        """Raise CommitConflictError when no time is left."""
        if self._clock() >= self._end:
            raise CommitConflictError("nothing was committed: other commits came first until the deadline; try again")

    def wait(self) -> None:
        """Wait before the next try, after a lost race."""
        now_s = self._clock()
        self._sleep(max(0.0, min(self._pause_s(now_s - self._start), self._end - now_s)))

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

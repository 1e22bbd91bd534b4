"""Runs the histories of many seeds in several processes, and tells how far it is, until a promise is broken."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from simulation.kinds import KINDS, Kind

#: Histories that a process takes at once, after how many takings another process begins, with an empty memory.
AT_ONCE, LIVES = 5, 100
#: Seconds between two lines that say how far it is.
SAID_EVERY_S = 10.0


@dataclass(slots=True)
class Done:
    """What was done of the seeds `first` to `end`: histories, requests, and the first seed that broke a promise."""

    first: int
    end: int
    histories: int = 0
    requests: int = 0
    broken: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """The seeds from `first` on, `count` of them, begun within `seconds`, on so many `cores`."""

    kind: Kind
    first: int
    count: int
    seconds: float
    cores: int

    def run(self) -> Done:
        """Run them; every history of a seed below the `end` of what is returned was run."""
        done, begun = Done(self.first, self.first), time.monotonic()
        said = begun
        # Ctrl-C is an end as that of the time is
        with closing(self._parts()) as parts, suppress(KeyboardInterrupt):
            for part in parts:
                now = time.monotonic()
                done.histories += part.histories
                done.requests += part.requests
                if part.broken is not None:
                    done.end, done.broken = part.broken[0], part.broken
                    break
                done.end = part.end
                if now > said + SAID_EVERY_S:
                    said = now
                    print(self.progress(done, now - begun), flush=True)
                if now - begun > self.seconds:
                    break
        return done

    def progress(self, done: Done, took_s: float) -> str:
        """A line that says how far it is, how fast, when it ends, and how to go on from here."""
        rate = done.histories / took_s
        left_s = min((self.count - done.histories) / rate if rate else float("inf"), self.seconds - took_s)
        left = f"{left_s / 3600:.1f} h" if left_s > 5400 else f"{left_s / 60:.0f} min"
        how_far = f"{done.histories:,} of {self.count:,} histories, {rate:.1f} a second, {left} left"
        return f"{how_far}; to go on from here: {' '.join([*self.kind.arguments, '--seed', str(done.end)])}"

    def _parts(self) -> Generator[Done, None, None]:
        """What each process has done, in the order of seeds."""
        end = self.first + self.count
        spans = [(first, min(first + AT_ONCE, end)) for first in range(self.first, end, AT_ONCE)]
        work = partial(_run, self.kind.name)
        # a fork has imported all, and no seed depends on what another one left behind
        with multiprocessing.get_context("fork").Pool(self.cores, _begin, maxtasksperchild=LIVES) as pool:
            yield from pool.imap(work, spans)


def _begin() -> None:
    # Ctrl-C is for the one that started this
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(name: str, span: tuple[int, int]) -> Done:
    kind, done = KINDS[name], Done(*span)
    for seed in range(*span):
        world, error = kind.history(kind.plan(seed))
        done.histories += 1
        done.requests += world.calls
        if error is not None:
            done.broken = seed, str(error)
            break
    return done

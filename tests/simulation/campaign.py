"""Runs the histories of many seeds in several processes, with reports of progress, until a promise is broken."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Generator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial

from simulation.kinds import KINDS, Kind

#: The histories that a process gets at once, and the batches after which a process with an empty memory replaces it.
AT_ONCE, LIVES = 5, 100
#: The seconds between two lines of progress.
PROGRESS_EVERY_S = 10.0


@dataclass(slots=True)
class Report:
    """The histories and requests of the seeds `first` to `end`, and the first seed that broke a promise."""

    first: int
    end: int
    histories: int = 0
    requests: int = 0
    broken: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class Campaign:
    """`count` seeds from `first` on, started within `seconds`, in `cores` processes."""

    kind: Kind
    first: int
    count: int
    seconds: float
    cores: int

    def run(self) -> Report:
        """Run the seeds; every history before the `end` of the returned report was run."""
        report, start_s = Report(self.first, self.first), time.monotonic()
        printed_s = start_s
        # Ctrl-C ends it like the end of the time
        with closing(self._parts()) as parts, suppress(KeyboardInterrupt):
            for part in parts:
                now = time.monotonic()
                report.histories += part.histories
                report.requests += part.requests
                if part.broken is not None:
                    report.end, report.broken = part.broken[0], part.broken
                    break
                report.end = part.end
                if now > printed_s + PROGRESS_EVERY_S:
                    printed_s = now
                    print(self.progress(report, now - start_s), flush=True)
                if now - start_s > self.seconds:
                    break
        return report

    def progress(self, report: Report, elapsed_s: float) -> str:
        """Return a line with the progress, the rate, the time left, and the arguments to continue."""
        rate = report.histories / elapsed_s
        seconds_left = min((self.count - report.histories) / rate if rate else float("inf"), self.seconds - elapsed_s)
        time_left = f"{seconds_left / 3600:.1f} h" if seconds_left > 5400 else f"{seconds_left / 60:.0f} min"
        text = f"{report.histories:,} of {self.count:,} histories, {rate:.1f} a second, {time_left} left"
        return f"{text}; to continue: {' '.join([*self.kind.arguments, '--seed', str(report.end)])}"

    def _parts(self) -> Generator[Report, None, None]:
        """Yield the report of each part, in the order of seeds."""
        end = self.first + self.count
        spans = [(first, min(first + AT_ONCE, end)) for first in range(self.first, end, AT_ONCE)]
        work = partial(_run, self.kind.name)
        # a fork has all imports, and no seed depends on another one
        with multiprocessing.get_context("fork").Pool(self.cores, _ignore_interrupt, maxtasksperchild=LIVES) as pool:
            yield from pool.imap(work, spans)


def _ignore_interrupt() -> None:
    # Ctrl-C is for the parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _run(name: str, span: tuple[int, int]) -> Report:
    kind, report = KINDS[name], Report(*span)
    for seed in range(*span):
        world, error = kind.history(kind.plan(seed))
        report.histories += 1
        report.requests += world.calls
        if error is not None:
            report.broken = seed, str(error)
            break
    return report

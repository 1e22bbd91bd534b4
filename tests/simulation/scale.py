"""Costs of size in simulated time: writers, partitions, and months of a topic, as tables for docs/scale.md.

    python -m simulation.scale [--only NAME] [--short] [--write]

Each size runs in its own process with the real library, over a store with S3's latencies and no faults. Times are
simulated. CPU and memory are real.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import re
import resource
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulation.scale_groups import Group, groups_of_a_topic
from simulation.scale_weeks import ENVIRONMENT, Weeks
from tools.pages.scale_charts import shown

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.json"
#: S3 Standard in us-east-1: writes and lists, and reads. Deletes are free.
WRITE_DOLLARS, READ_DOLLARS = 0.005 / 1000, 0.0004 / 1000
DOLLARS = {"put": WRITE_DOLLARS, "put if absent": WRITE_DOLLARS, "list": WRITE_DOLLARS, "delete": 0.0}
#: Bytes of a value, and the seconds of a day.
VALUE, DAY_S = b"v" * 100, 86_400


@dataclass
class Measured:
    """The appends of one size of a scenario, and the state afterwards."""

    records: int = 0
    #: The durations of the finished appends, the number of started ones, and the time of all.
    durations_s: list[float] = field(default_factory=list)
    started: int = 0
    seconds: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)
    #: Names and bytes in `_commits/` at the end, and bytes written there.
    names: int = 0
    stored: int = 0
    written: int = 0
    open_requests: int = 0
    #: None where processes shared their work.
    cpu_s: float | None = 0.0
    memory: int = 0
    #: Names in `_commits/` over time, if they were counted.
    names_each_day: list[int] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        appends = len(self.durations_s)
        # at the end some appends may still wait, for an unknown time
        durations_s: list[float | None] = [*sorted(self.durations_s), *[None] * (self.started - appends)]
        requests = sum(self.requests.values())
        dollars = sum(count * DOLLARS.get(kind, READ_DOLLARS) for kind, count in self.requests.items())
        return {
            "appends a second": appends / self.seconds,
            "p50 ms": _ms(durations_s[len(durations_s) // 2]),
            "p99 ms": _ms(durations_s[int(len(durations_s) * 0.99)]),
            "requests an append": requests / appends,
            "$ a million records": dollars / self.records * 1e6,
            "metadata bytes an append": self.written / appends,
            "names in _commits": self.names,
            "KB in _commits": self.stored / 1000,
            "requests of an open": self.open_requests,
            "CPU ms an append": None if self.cpu_s is None else self.cpu_s / appends * 1000,
            "MB of memory": self.memory / 1e6,
            **({"names each day": self.names_each_day} if self.names_each_day else {}),
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000


class Stage:
    def __init__(self, partitions: int, config: Mapping[str, object] | None = None) -> None:
        from simulation.object_store import ObjectStore
        from simulation.world import World

        self.world, self.measured = World(0), Measured()
        self.world.most_calls, self.world.switching = 1 << 60, 0.0
        self.store = ObjectStore(self.world, watchers=[self._watch])
        self.partitions, self.config = partitions, dict(config or {})
        self.start_s, self.url = 0.0, "s3://bucket/clicks"
        #: Bytes of the store's objects, and of the process before the first append.
        self.stored, self.idle_bytes = 0, 0

    def _watch(self, kind: str, key: str, data: bytes | None) -> None:
        size, old = len(data or b""), self.store.objects.get(key)
        self.stored += size - (len(old.data) if old else 0)
        if "/_commits/" in key:
            self.measured.written += size

    def _note_memory(self) -> None:
        """Note the memory without the store's."""
        self.measured.memory = max(self.measured.memory, _memory() - self.idle_bytes - self.stored)

    def play(self, actors: Sequence[Callable[[], object]], seconds: float = math.inf) -> Measured:
        """Create the topic, run each actor in its own process for at most `seconds`, and count."""
        import distlog
        from simulation.object_store import connected

        with self.world as world, connected(self.store):
            self._do(lambda: distlog.create(self.url, partitions=self.partitions, config=self.config))
            self.idle_bytes, start_cpu_s, self.start_s = _memory() - self.stored, time.process_time(), world.now
            self.measured.written = 0
            self.store.requests.clear()
            for number, actor in enumerate(actors):
                world.process(f"actor-{number}").start(actor)
            world.run(self.start_s + seconds)
            measured = self.measured
            measured.requests, measured.cpu_s = Counter(self.store.requests), time.process_time() - start_cpu_s
            commits = self.commits()
            measured.names, measured.stored = len(commits), sum(map(len, commits))
            for process in world.processes:
                process.die()
            calls = world.calls
            self._do(lambda: distlog.open(self.url))
            measured.open_requests = world.calls - calls
        return measured

    def commits(self) -> list[bytes]:
        return [stored.data for key, stored in self.store.objects.items() if "/_commits/" in key]

    def _do(self, work: Callable[[], object]) -> None:
        self.world.process("somebody").start(work)
        self.world.run()
        if self.world.errors:
            raise self.world.errors[0][1]

    def rows(self, records: int) -> Any:
        import numpy as np
        import pyarrow as pa

        numbers = np.arange(records, dtype=np.int32) % self.partitions
        return pa.table({"partition": numbers, "value": pa.array([VALUE] * records)})

    def appender(self, records: int, end_s: float, every_s: float = 0.0) -> Callable[[], None]:
        """Return an actor that appends `records` records over all partitions, again and again."""

        def appends() -> None:
            import distlog

            topic, world, table = distlog.open(self.url), self.world, self.rows(records)
            while (append_s := world.now) - self.start_s < end_s:
                self.measured.started += 1
                topic.append(table)
                self.measured.durations_s.append(world.now - append_s)
                self.measured.records += records
                self.measured.seconds = world.now - self.start_s
                self._note_memory()
                world.pause(max(0.0, append_s + every_s - world.now))

        return appends

    def maintainer(self, end_s: float, every_s: float) -> Callable[[], None]:
        def maintains() -> None:
            import distlog

            topic = distlog.open(self.url)
            while self.world.now - self.start_s < end_s:
                self.world.pause(every_s)
                topic.refresh()
                topic.retention()
                topic.compact()
                topic.vacuum()
                self._note_memory()

        return maintains

    def counter(self, end_s: float, every_s: float) -> Callable[[], None]:
        def counts() -> None:
            for _ in range(round(end_s / every_s)):
                self.world.pause(every_s)
                self.measured.names_each_day.append(len(self.commits()))

        return counts


def _memory() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


#: From this number of writers on they run for a shorter time, in s, and share computations.
MANY_WRITERS, A_WHILE_S = 1000, 14.0


def writers(size: int, short: bool) -> Measured:
    """Many writers of one topic, each with appends of ten records."""
    stage, seconds = Stage(10), 5.0 if short else 30.0
    actors = [stage.appender(10, seconds) for _ in range(size)]
    if size < MANY_WRITERS:
        return stage.play(actors)
    from simulation.pure import computed_once

    with computed_once():
        measured = stage.play(actors, 1.0 if short else A_WHILE_S)
    measured.cpu_s = None
    return measured


def partitions(size: int, short: bool) -> Measured:
    """One writer with ten records for each partition every second, and `maintain` every half minute."""
    stage, seconds = Stage(size), 10.0 if short else 60.0
    return stage.play([stage.appender(10 * size, seconds, 1.0), stage.maintainer(seconds, 30.0)])


#: The retention of a topic of months: a day of records and of files, and a week of commits.
RETENTION = {"retention.ms": DAY_S * 1000, "file.delete.delay.ms": 3_600_000}


def micro_batches(size: int, short: bool) -> Measured:
    """An append every hour for `size` days, and `maintain` every day."""
    stage, seconds = Stage(4, RETENTION), size * DAY_S / (100 if short else 1)
    actors = stage.appender(400, seconds, 3600.0), stage.maintainer(seconds, DAY_S), stage.counter(seconds, DAY_S)
    return stage.play(actors)


Figures = dict[str, Any]


def separate(run: Callable[[int, bool], Measured]) -> Callable[[Sequence[int], bool], dict[int, Figures]]:
    return lambda sizes, short: {size: run(size, short).figures() for size in sizes}


def weeks_of(weeks: Weeks) -> Callable[[Sequence[int], bool], dict[int, Figures]]:
    """Run the weeks of one topic; short ones have fewer appends."""

    def run(sizes: Sequence[int], short: bool) -> dict[int, Figures]:
        plan = dataclasses.replace(weeks, every_s=weeks.every_s * 8) if short else weeks
        return plan.play(Stage(weeks.partitions, weeks.config), sizes)

    return run


def consumers(sizes: Sequence[int], short: bool) -> dict[int, Figures]:
    return {size: Group(Stage(size), 2 if short else size).play() for size in sizes}


def groups(sizes: Sequence[int], short: bool) -> dict[int, Figures]:
    return {size: groups_of_a_topic(Stage(4, RETENTION), size) for size in sizes}


@dataclass(frozen=True)
class Scenario:
    """The size that varies, the figures of its table, and whether all sizes run in one process."""

    run: Callable[[Sequence[int], bool], dict[int, Figures]]
    unit: str
    sizes: Sequence[int]
    columns: Sequence[str]
    together: bool = False


_SPEED = ("appends a second", "p50 ms", "p99 ms", "requests an append", "$ a million records")
_KEEP = (
    "names in _commits",
    "KB in _commits",
    "requests of an open",
    "requests an append",
    "$ a million records",
    "CPU ms an append",
    "MB of memory",
)
_YEAR = (
    "commits",
    "names in _commits",
    "KB in _commits",
    "objects in all",
    "requests of an open",
    "CPU ms of an open",
    "requests of a vacuum",
    "CPU ms of a vacuum",
    "MB in use",
)
SCENARIOS: Mapping[str, Scenario] = {
    "writers": Scenario(separate(writers), "writers", (1, 10, 100, 1000), (*_SPEED, "CPU ms an append")),
    "partitions": Scenario(
        separate(partitions),
        "partitions",
        (10, 100, 1000, 10_000),
        (*_SPEED, "metadata bytes an append", "CPU ms an append", "MB of memory"),
    ),
    "micro-batches": Scenario(separate(micro_batches), "days", (7, 30, 90, 365), _KEEP),
    "consumers": Scenario(
        consumers,
        "members",
        (10, 30, 100, 300),
        (
            "s to join",
            "requests of a member to join",
            "requests a minute of an idle member",
            "CPU ms a minute of an idle member",
            "s to commit",
            "requests of a member to commit",
            "s to take over",
            "KB of the group's state",
        ),
    ),
    "groups": Scenario(
        groups,
        "groups",
        (10, 100, 1000, 10_000),
        (
            "requests of a new group",
            "requests of a list",
            "s of a list",
            "CPU ms of a list",
            "requests of a vacuum with groups",
            "CPU ms of a vacuum with groups",
            "requests of a vacuum of groups",
            "s of a vacuum of groups",
            "CPU ms of a vacuum of groups",
        ),
    ),
    "stream year": Scenario(weeks_of(Weeks(4, 1.0, 300.0)), "week", (1, 2, 4, 13, 26, 39, 52), _YEAR, together=True),
    "gateway year": Scenario(
        weeks_of(Weeks(38, 0.25, 60.0)), "week", (1, 2, 4, 13, 26, 39, 52), _YEAR, together=True
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="simulation.scale", description=__doc__)
    parser.add_argument("--only", choices=SCENARIOS, help="one scenario")
    parser.add_argument("--short", action="store_true", help="small sizes, and a short time for each")
    parser.add_argument("--write", action="store_true", help="keep the figures in docs/scale.json and its page")
    parser.add_argument("--sizes", type=int, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sizes is not None:
        warnings.simplefilter("ignore")
        print(json.dumps(SCENARIOS[arguments.only].run(arguments.sizes, arguments.short)))
        return 0
    figures = json.loads(FIGURES.read_text()) if FIGURES.exists() else {}
    for name in [arguments.only] if arguments.only else SCENARIOS:
        figures[name] = _sizes(name, short=arguments.short)
        print(name, table(name, figures[name]), sep="\n\n", end="\n\n", flush=True)
    if arguments.write:
        FIGURES.write_text(json.dumps(figures, indent=1) + "\n")
        PAGE.write_text(page(PAGE.read_text(), figures))
    return 0


def _sizes(name: str, *, short: bool) -> dict[str, Figures]:
    scenario = SCENARIOS[name]
    sizes = [*map(str, scenario.sizes[:2] if short else scenario.sizes)]
    figures = dict[str, Figures]()
    for part in [sizes] if scenario.together else [[size] for size in sizes]:
        command = [sys.executable, "-m", "simulation.scale", "--only", name, "--sizes", *part, *["--short"] * short]
        environment = {**os.environ, **(ENVIRONMENT if scenario.together else {}), "PYTHONHASHSEED": "0"}
        result = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True)
        figures |= json.loads(result.stdout)
    return figures


def table(name: str, figures: Mapping[str, Mapping[str, Any]]) -> str:
    scenario = SCENARIOS[name]
    lines = [[scenario.unit, *scenario.columns], ["---"] * (1 + len(scenario.columns))]
    lines += [
        [f"{int(size):,}", *(shown(row[column]) for column in scenario.columns)] for size, row in figures.items()
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(text: str, figures: Mapping[str, Any]) -> str:
    """Return the page with new tables, each after the marker with its name."""

    parts = re.split(r"(<!-- table: .+ -->\n)(?:\|.*\n)*", text)
    for number, part in enumerate(parts):
        if number % 2:
            name = part.removeprefix("<!-- table: ").removesuffix(" -->\n")
            parts[number] += table(name, figures[name]) + "\n"
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())

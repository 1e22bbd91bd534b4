"""`python -m simulation`: run histories, tell one as a story, or look how soon planted bugs are found."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.history import Plan
    from simulation.world import World

#: For each planted bug the first seed whose history finds it; and the same for those of a local disk.
FOUND, FOUND_ON_DISK = (Path(__file__).with_name(name) for name in ("found.json", "found_on_disk.json"))


def main() -> int:
    """Run what the arguments ask for; 1 if a promise was broken, or a planted bug was not found."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--histories", type=int, default=1, help="how many seeds, at most")
    parser.add_argument("--disk", action="store_true", help="on a local disk")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no history after so long")
    parser.add_argument("--trace", action="store_true", help="tell the histories")
    parser.add_argument("--planted", metavar="BUG", action="append", help="with a bug, `all`, or those `found`")
    parser.add_argument("--listing-lag", type=float, default=0.0, metavar="S", help="listings are as old as this")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make its history as small as it breaks a promise")
    parser.add_argument("--cast", metavar="N,...", help="have only these actors act, by their numbers")
    parser.add_argument("--length", type=float, metavar="S", help="let the history last so long")
    parser.add_argument("--without", metavar="FAULT", action="append", help="a kind of fault that does not happen")
    parser.add_argument("--keep", action="store_true", help="keep the seeds that find planted bugs in found.json")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # the order of a set of texts is a part of a history
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    if arguments.planted:
        return _look_for_on_disk(arguments) if arguments.disk else _look_for(arguments)
    if arguments.shrink is not None:
        arguments.seed = arguments.shrink
    return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from simulation.history import plan
    from simulation.shrinking import smaller

    begun, calls, broken, count = time.perf_counter(), 0, 0, 0
    for seed in range(arguments.seed, arguments.seed + arguments.histories):
        if time.perf_counter() - begun > 60 * arguments.minutes:
            break
        count += 1
        drawn = smaller(plan(seed), cast=arguments.cast, length_s=arguments.length, without=arguments.without)
        if arguments.disk:
            world, error = _history_on_disk(seed, traced=arguments.trace)
        else:
            world, error = _history(drawn, traced=arguments.trace, listing_lag_s=arguments.listing_lag)
        calls += world.calls
        if world.story is not None:
            print(*world.story, sep="\n")
        if error is not None:
            broken += 1
            print(f"broken by seed {seed}: {error}", flush=True)
            is_asked = arguments.shrink is not None or arguments.minutes < float("inf")
            if is_asked and broken == 1 and not arguments.disk:
                _shrink(drawn, str(error), arguments.listing_lag)
    seconds = time.perf_counter() - begun
    print(f"{count} histories, {calls} requests, {seconds:.1f} s; {broken} broke a promise")
    return 1 if broken else 0


def _shrink(drawn: Plan, broken: str, listing_lag_s: float) -> None:
    from simulation.shrinking import as_test, shrink

    def attempt(made: Plan) -> str | None:
        error = _history(made, listing_lag_s=listing_lag_s)[1]
        return None if error is None else str(error)

    print(as_test(shrink(drawn, broken, attempt), broken), flush=True)


def _look_for(arguments: argparse.Namespace) -> int:
    from simulation.history import plan
    from simulation.planted import BUGS, planted

    found: dict[str, int | None] = json.loads(FOUND.read_text()) if FOUND.exists() else {}
    names = list(BUGS) if "all" in arguments.planted else arguments.planted
    if "found" in arguments.planted:
        names = [name for name in BUGS if found.get(name) is not None]
    missed = 0
    for name in names:
        first = None
        seeds: Iterable[int | None] = range(arguments.seed, arguments.seed + arguments.histories)
        if "found" in arguments.planted:
            seeds = [found[name]]
        with planted(name):
            for seed in seeds:
                assert seed is not None
                drawn = plan(seed)
                # the others cannot meet it
                error = _history(drawn)[1] if BUGS[name].words <= drawn.words else None
                if error is not None:
                    first = seed
                    break
        missed += first is None
        found[name] = first
        _tell_found(name, first, error)
        if arguments.keep:
            _keep(FOUND, found)
    return 1 if missed else 0


def _history(drawn: Plan, *, traced: bool = False, listing_lag_s: float = 0.0) -> tuple[World, AssertionError | None]:
    from simulation.history import run
    from simulation.object_store import Flaws
    from simulation.world import World

    world = World(drawn.seed, traced=traced)
    try:
        run(world, Flaws(listing_lag_s=listing_lag_s), drawn)
    except AssertionError as error:
        return world, error
    return world, None


def _tell_found(name: str, first: int | None, error: Exception | None) -> None:
    print(f"{name}: {'not found' if first is None else f'by seed {first}: {error}'}"[:300], flush=True)


def _keep(file: Path, found: dict[str, int | None]) -> None:
    file.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n")


def _look_for_on_disk(arguments: argparse.Namespace) -> int:
    from simulation.disk_planted import BUGS

    found: dict[str, int | None] = json.loads(FOUND_ON_DISK.read_text()) if FOUND_ON_DISK.exists() else {}
    missed = 0
    for name in BUGS if {"all", "found"} & {*arguments.planted} else arguments.planted:
        seeds: Iterable[int] = range(arguments.seed, arguments.seed + arguments.histories)
        if "found" in arguments.planted and (known := found.get(name)) is not None:
            seeds = [known, *range(60)]
        with BUGS[name]():
            errors = ((seed, _history_on_disk(seed)[1]) for seed in seeds)
            first, error = next(((seed, error) for seed, error in errors if error is not None), (None, None))
        missed += first is None
        found[name] = first
        _tell_found(name, first, error)
        if arguments.keep:
            _keep(FOUND_ON_DISK, found)
    return 1 if missed else 0


def _history_on_disk(seed: int, *, traced: bool = False) -> tuple[World, Exception | None]:
    from simulation.disk_histories import run
    from simulation.world import World

    world = World(seed, traced=traced)
    try:
        run(world)
    except Exception as error:
        return world, error
    return world, None


if __name__ == "__main__":
    sys.exit(main())

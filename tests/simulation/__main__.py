"""`python -m simulation`: run histories, print the story of one, or find out which seeds catch planted bugs."""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import os
import sys
import time
import warnings
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.explorer import Explored
    from simulation.history import Drawn
    from simulation.kinds import Kind
    from simulation.object_store import Flaws


def main() -> int:
    """Run what the arguments ask for; return 1 if a promise was broken or a planted bug was not found."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--histories", type=int, default=1, help="the number of seeds")
    parser.add_argument("--seeds", metavar="N,...", help="run these seeds instead of a range")
    parser.add_argument("--disk", action="store_true", help="on a local disk")
    parser.add_argument("--short", action="store_true", help="of few actors and requests")
    parser.add_argument(
        "--mixed", action="store_true", help="short histories, and a twentieth as many of other kinds"
    )
    parser.add_argument(
        "--cores", type=int, default=1, help="run in N processes, 0 for all, until a promise is broken"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no history after this time")
    parser.add_argument("--trace", action="store_true", help="print the story of each history")
    parser.add_argument("--digest", action="store_true", help="print a checksum of all that happens in each")
    parser.add_argument(
        "--planted", metavar="BUG", action="append", help="with a bug, or `all`; `found`: its seed first"
    )
    parser.add_argument("--listing-lag", type=float, default=0.0, metavar="S", help="listings are as old as this")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="make its history as small as it breaks a promise")
    parser.add_argument("--cast", metavar="N,...", help="have only these actors act, by their numbers")
    parser.add_argument("--length", type=float, metavar="S", help="the seconds that the history lasts")
    parser.add_argument("--fate", type=int, default=0, metavar="N", help="another history of the same plan")
    parser.add_argument("--without", metavar="FAULT", action="append", help="leave out a kind of fault")
    parser.add_argument("--explore", metavar="SCENARIO", help="run the schedules of a scenario, or of `all`")
    parser.add_argument("--schedules", type=int, metavar="N", help="run at most N schedules of each, cheapest first")
    parser.add_argument("--schedule", metavar="POINT:KIND,...", help="run one schedule, and print its story")
    parser.add_argument("--keep", action="store_true", help="keep the seeds that find planted bugs")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        # the order of a set of strings is a part of a history
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    from simulation.kinds import ON_DISK, ON_STORE, SHORT

    # what was imported takes no part in later collections
    gc.collect()
    gc.freeze()
    kind = ON_DISK if arguments.disk else SHORT if arguments.short else ON_STORE
    if arguments.explore:
        return _explore(arguments)
    if arguments.mixed:
        return _run_mixed(arguments) or _explore(arguments)
    if arguments.planted:
        return _find_planted(arguments, kind)
    if arguments.shrink is not None:
        arguments.seed = arguments.shrink
    return _run(arguments, kind) if arguments.cores == 1 else _run_on_cores(arguments, kind)


def _run(arguments: argparse.Namespace, kind: Kind) -> int:
    from simulation.object_store import Flaws
    from simulation.shrinking import smaller

    start_s, calls, broken, count = time.perf_counter(), 0, 0, 0
    flaws = Flaws(listing_lag_s=arguments.listing_lag)
    span = range(arguments.seed, arguments.seed + arguments.histories)
    for seed in map(int, arguments.seeds.split(",")) if arguments.seeds else span:
        if time.perf_counter() - start_s > 60 * arguments.minutes:
            break
        count += 1
        drawn = smaller(
            kind.plan(seed),
            cast=arguments.cast,
            length_s=arguments.length,
            without=arguments.without,
            fate=arguments.fate,
        )
        world, error = kind.history(drawn, traced=arguments.trace or arguments.digest, flaws=flaws)
        calls += world.calls
        if arguments.trace:
            print(*world.story or (), sep="\n")
        if arguments.digest:
            print(f"seed {seed}: {world.calls} requests, {world.digest()}", flush=True)
        if error is not None:
            broken += 1
            print(f"broken by seed {seed}: {error}", flush=True)
            is_asked = arguments.shrink is not None or arguments.minutes < float("inf")
            if is_asked and broken == 1:
                _shrink(kind, drawn, str(error), flaws)
    seconds = time.perf_counter() - start_s
    print(f"{count} histories, {calls} requests, {seconds:.1f} s; {broken} broke a promise")
    return 1 if broken else 0


def _run_on_cores(arguments: argparse.Namespace, kind: Kind) -> int:
    from simulation.campaign import Campaign
    from simulation.object_store import Flaws

    cores, start_s = arguments.cores or os.cpu_count() or 1, time.monotonic()
    campaign = Campaign(kind, arguments.seed, arguments.histories, 60 * arguments.minutes, cores).run()
    if campaign.broken is not None:
        seed, text = campaign.broken
        print(f"broken by seed {seed}: {text}", flush=True)
        _shrink(kind, kind.plan(seed), text, Flaws())
    seconds = time.monotonic() - start_s
    print(f"{campaign.histories} histories, {campaign.requests} requests, {seconds:.1f} s", end="; ")
    print(f"{int(campaign.broken is not None)} broke a promise; to continue: --seed {campaign.end}")
    return 1 if campaign.broken is not None else 0


def _run_mixed(arguments: argparse.Namespace) -> int:
    """Run histories of every kind until a promise is broken."""
    from simulation.kinds import ON_DISK, ON_STORE, SHORT

    count = arguments.histories
    for kind, share in ((SHORT, 1), (ON_STORE, 20), (ON_DISK, 20)):
        arguments.histories = -(-count // share)
        if _run_on_cores(arguments, kind):
            return 1
    return 0


def _explore(arguments: argparse.Namespace) -> int:
    """Run the schedules of one scenario, or of all, until a promise is broken."""
    from simulation.explorer import happens, parse
    from simulation.explorer_planted import EXPLORED_BUGS
    from simulation.kinds import SCENARIOS

    names = list(SCENARIOS) if arguments.explore in (None, "all") else [arguments.explore]
    plants = [EXPLORED_BUGS[name].plant for name in arguments.planted or ()]
    with ExitStack() as planted:
        for plant in plants:
            planted.enter_context(plant())
        if arguments.schedule is not None:
            world, _, error = happens(SCENARIOS[arguments.explore], parse(arguments.schedule), traced=True)
            print(*world.story or (), f"broken: {error}" if error else "", sep="\n")
            return 1 if error else 0
        # the scenarios share the time; `make soak` runs as many schedules as long histories
        most = arguments.schedules or (arguments.histories if arguments.mixed else float("inf"))
        run = partial(_explored, most=most, cpu_s=60 * arguments.minutes / len(names))
        with multiprocessing.get_context("fork").Pool(arguments.cores or None) as pool:
            for explored in pool.imap(run, names):
                print(explored, flush=True)
                if explored.broken is not None:
                    return 1
    return 0


def _explored(name: str, most: float, cpu_s: float) -> Explored:
    from simulation.explorer import Exploration
    from simulation.kinds import SCENARIOS

    return Exploration(SCENARIOS[name]).run(most, cpu_s)


def _shrink(kind: Kind, drawn: Drawn, broken: str, flaws: Flaws) -> None:
    from simulation.shrinking import arguments_of, as_test, shrink

    def attempt(plan: Drawn) -> str | None:
        error = kind.history(plan, flaws=flaws)[1]
        return None if error is None else str(error)

    smallest = shrink(drawn, broken, attempt)
    print(as_test([*kind.arguments, *arguments_of(kind.plan(drawn.seed), smallest)], broken), flush=True)


def _find_planted(arguments: argparse.Namespace, kind: Kind) -> int:
    kept_seeds = kind.kept_seeds()
    names = [name for name in arguments.planted if name not in ("all", "found")] or list(kind.bugs)
    if arguments.planted == ["found"] and arguments.histories == 1:
        names = [name for name in names if kept_seeds.get(name) is not None]
    missed = 0
    for name in names:
        kept_seed = kept_seeds.get(name) if "found" in arguments.planted else None
        span = range(arguments.seed, arguments.seed + arguments.histories)
        # a patch may remember the first history of a seed, so no seed runs twice
        seeds = [seed for seed in span if seed != kept_seed]
        first, error = kind.first(name, seeds if kept_seed is None else [kept_seed, *seeds])
        missed += first is None
        kept_seeds[name] = first
        print(f"{name}: {'not found' if first is None else f'by seed {first}: {error}'}"[:300], flush=True)
        if arguments.keep:
            kind.keep(kept_seeds)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())

"""Run the crash campaigns for some minutes; print what was counted. The exit status is 1 if a promise was broken."""

from __future__ import annotations

import argparse
import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from soak import (
    disk_errors,
    exactly_once,
    gateway_kills,
    histories,
    hostile_frames,
    kills,
    many_gateways,
    merge_plans,
    merging,
    power,
    searches,
    stops,
    streams,
    streams_on_s3,
    transactions,
)
from soak.tally import Tally

#: By name, one short run of the campaign in a folder, with a seed.
CAMPAIGNS: dict[str, Callable[[Path, int], Tally]] = {
    "kills": partial(kills.run, seconds=15, rounds=4),
    "gateway-kills": gateway_kills.run,
    "gateway-kills-with-two": partial(gateway_kills.run, gateways=2),
    "gateway-kills-on-s3": gateway_kills.run_on_s3,
    "gateway-kills-on-s3-with-two": partial(gateway_kills.run_on_s3, gateways=2),
    "many-gateways": many_gateways.run,
    "many-gateways-on-s3": many_gateways.run_on_s3,
    "exactly-once": exactly_once.run,
    "exactly-once-with-two-gateways": exactly_once.run_with_two,
    "exactly-once-on-s3": exactly_once.run_on_s3,
    "hostile-frames": hostile_frames.run,
    "histories": histories.run,
    "histories-on-disk": partial(histories.run, more=["--disk"]),
    "stops": stops.run,
    **{kind: partial(disk_errors.run, kind=kind, histories=20) for kind in disk_errors.KINDS},
    "power": partial(power.run, lives=20),
    "streams": partial(streams.run, kills=12),
    "streams-on-s3": partial(streams_on_s3.run, kills=12),
    "merging": merging.run,
    "merge-plans": merge_plans.run,
    "transactions": transactions.run,
    "searches": searches.run,
}


def main() -> int:
    """Run the campaigns in turn until the time is over, at least each once."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}; all by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    chosen = parser.parse_args()
    names = chosen.campaigns or list(CAMPAIGNS)
    if unknown := sorted(set(names) - set(CAMPAIGNS)):
        parser.error(f"no campaign {unknown[0]}; there are {', '.join(CAMPAIGNS)}")
    end, tallies = time.monotonic() + 60 * chosen.minutes, {name: Tally() for name in names}
    minutes = dict.fromkeys(names, 0.0)
    for seed in itertools.count(chosen.seed):
        for name in names:
            began = time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
            try:
                tallies[name].update(CAMPAIGNS[name](folder, seed))
            except AssertionError as error:
                print(f"{name}, seed {seed}, what is left is in {folder}: {error}", file=sys.stderr)
                return 1
            shutil.rmtree(folder, ignore_errors=True)
            minutes[name] += (time.monotonic() - began) / 60
        if time.monotonic() >= end:
            break
    print("\n".join(counted(tallies, minutes)))
    return 0


def counted(tallies: Mapping[str, Tally], minutes: Mapping[str, float]) -> Iterator[str]:
    """A line for each campaign, by the minutes that it took; the kills also by the minute."""
    for name, tally in tallies.items():
        rate = f", {tally['kills'] / minutes[name]:.0f} kills a minute" if tally["kills"] else ""
        yield f"{name}, {minutes[name]:.1f} minutes: {tally or 'nothing'}{rate}"


if __name__ == "__main__":
    sys.exit(main())

"""Run the crash campaigns for some minutes; print a page of what was counted and found, in Markdown.

Ctrl-C ends them early, with a page of what was done. The exit status is 1 if a promise was broken, or a campaign
failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from distlog.core import VERSION
from soak import (
    cluster,
    disk_errors,
    exactly_once,
    gateway_kills,
    histories,
    hostile_frames,
    kills,
    many_gateways,
    power,
    searches,
    second_attempts,
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
    "short-histories": partial(histories.run, more=["--short"]),
    "histories-on-disk": partial(histories.run, more=["--disk"]),
    "planted-bugs": histories.find_planted,
    "stops": stops.run,
    **{kind: partial(disk_errors.run, kind=kind, histories=20) for kind in disk_errors.KINDS},
    "power": partial(power.run, lives=20),
    "streams": partial(streams.run, kills=12),
    "streams-on-s3": partial(streams_on_s3.run, kills=12),
    "cluster": partial(cluster.run, kills=16),
    "second-attempts": second_attempts.run,
    "transactions": transactions.run,
    "searches": searches.run,
}


@dataclass(slots=True)
class Outcome:
    """The runs of a campaign, and its `problem`, which is empty without one.

    The last run of one that `is_cut` was interrupted, and counted nothing.
    """

    tally: Tally = field(default_factory=Tally)
    minutes: float = 0.0
    runs: int = 0
    problem: str = ""
    is_cut: bool = False


def main() -> int:
    """Run the campaigns in turn until the time is over, at least each once; then print the page."""
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("campaigns", nargs="*", metavar="CAMPAIGN", help=f"of {', '.join(CAMPAIGNS)}; all by default")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the page to this file too")
    options = parser.parse_args()
    names = options.campaigns or list(CAMPAIGNS)
    if unknown := sorted(set(names) - set(CAMPAIGNS)):
        parser.error(f"no campaign {unknown[0]}; there are {', '.join(CAMPAIGNS)}")
    if options.report is not None and not options.report.absolute().parent.is_dir():
        parser.error(f"there is no folder for {options.report}")
    began = datetime.now(timezone.utc)
    outcomes = run({name: CAMPAIGNS[name] for name in names}, options.minutes, options.seed)
    text = page(outcomes, began, options.seed)
    print(text, end="")
    if options.report is not None:
        options.report.write_text(text, encoding="utf-8")
    return int(any(outcome.problem for outcome in outcomes.values()))


def run(campaigns: Mapping[str, Callable[[Path, int], Tally]], minutes: float, seed: int) -> dict[str, Outcome]:
    """The outcomes of the campaigns: each in turn, once or until the time is over, or until one finds something."""
    end, outcomes = time.monotonic() + 60 * minutes, {name: Outcome() for name in campaigns}
    while not any(entry.runs for entry in outcomes.values()) or time.monotonic() < end:
        for name, campaign in campaigns.items():
            outcome, begin = outcomes[name], time.monotonic()
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-"))
            try:
                outcome.tally.add(campaign(folder, seed))
            except KeyboardInterrupt:
                print(f"{name}, seed {seed}: interrupted, its files are in {folder}", file=sys.stderr)
                outcome.is_cut = True
                return outcomes
            except Exception as error:
                if not isinstance(error, AssertionError):
                    traceback.print_exc()
                print(f"{name}, seed {seed}, its files are in {folder}: {error}", file=sys.stderr)
                prefix = "" if isinstance(error, AssertionError) else f"the campaign failed, {type(error).__name__}: "
                outcome.problem = f"seed {seed}: {prefix}{error}"
                return outcomes
            finally:
                outcome.runs += 1
                outcome.minutes += (time.monotonic() - begin) / 60
            shutil.rmtree(folder, ignore_errors=True)
        seed += 1
    return outcomes


#: The counts of kills, where these are not counted by victim; and of interruptions other than kills.
_KILLS = ("kills", "takeovers")
_FAULTS = ("faults", "stops", "terms", "pauses of an executor", "power losses", "actions that failed")
_LONGEST = 300


def page(outcomes: Mapping[str, Outcome], began: datetime, seed: int) -> str:
    """The page in Markdown: a table with a row per campaign."""
    wrong = sum(bool(outcome.problem) for outcome in outcomes.values())
    verdict = "**A promise was broken.**" if wrong else "No promise was found broken."
    minutes = sum(outcome.minutes for outcome in outcomes.values())
    machine = f"Python {platform.python_version()}, {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    head = [
        f"# Crash campaigns of distlog {VERSION}",
        "",
        f"{began:%Y-%m-%d %H:%M} UTC, {minutes:.1f} minutes, from seed {seed} on; {machine}. {verdict}",
        "",
        "| campaign | runs | minutes | kills | faults | records | all counts | found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *(_row(name, outcome) for name, outcome in outcomes.items()), ""])


def _row(name: str, outcome: Outcome) -> str:
    tally = outcome.tally
    kills = sum(count for fault, count in tally.items() if fault in _KILLS or fault.startswith("kills of "))
    rate = f" ({kills / outcome.minutes:.0f} a minute)" if kills else ""
    records = max((count for fault, count in tally.items() if fault.startswith("records")), default=0)
    is_run = bool(tally or outcome.problem)
    problem = (
        " ".join(outcome.problem.split()).replace("|", "\\|")[:_LONGEST] or "nothing" if is_run else "was not run"
    )
    if outcome.is_cut:
        problem += ", the last run was interrupted"
    cells = [
        name,
        str(outcome.runs if is_run else 0),
        f"{outcome.minutes:.1f}",
        f"{kills:,}{rate}",
        f"{sum(tally[fault] for fault in _FAULTS):,}",
        f"{records:,}",
        str(tally),
        problem,
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())

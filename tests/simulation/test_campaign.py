"""Many histories in several processes: progress, and a broken promise."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from simulation import campaign, kinds
from simulation.campaign import Campaign
from simulation.kinds import ON_STORE


@dataclass(frozen=True)
class Seed:
    seed: int
    fate: int = 0


def breaks_at(*seeds: int) -> kinds.Kind:
    """A kind of history in which these seeds break a promise, and no other does anything."""

    def run(world: object, flaws: object, drawn: Seed) -> None:
        if drawn.seed in seeds:
            raise ValueError(f"a promise of {drawn.seed}")

    return replace(ON_STORE, name="made up", plan=Seed, run=run)


def campaign_of(kind: kinds.Kind, monkeypatch: pytest.MonkeyPatch, count: int, seconds: float = 600) -> Campaign:
    monkeypatch.setitem(kinds.KINDS, kind.name, kind)
    return Campaign(kind, 100, count, seconds, 2)


def test_all_seeds_are_run_on_several_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    report = campaign_of(breaks_at(), monkeypatch, 33).run()
    assert (report.first, report.end, report.histories, report.broken) == (100, 133, 33, None)


def test_it_stops_at_the_first_seed_that_breaks_a_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    report = campaign_of(breaks_at(117, 121), monkeypatch, 33).run()
    assert report.broken == (117, "a promise of 117")
    assert report.end == 117


def test_it_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    report = campaign_of(breaks_at(), monkeypatch, 33, seconds=0).run()
    assert report.histories == report.end - 100 == campaign.AT_ONCE


def test_a_line_of_progress_has_the_rate_and_the_seed_to_continue_from(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "PROGRESS_EVERY_S", -1.0)
    campaign_of(breaks_at(), monkeypatch, 33).run()
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith("5 of 33 histories, ")
    assert first.endswith(" left; to continue: --seed 105")


def test_the_documented_command_runs_without_pytest(tmp_path: Path) -> None:
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "simulation", "--short", "--seeds", "3"]
    path = os.pathsep.join([str(tests.parent), str(tests)])
    run = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stderr) == (0, "")

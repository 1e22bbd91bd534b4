"""A few seconds of each crash campaign; `make soak` runs them for minutes."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from datetime import datetime, timezone
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from forked_programs import Program
from soak import disk_errors, kills, power, searches, stops, transactions
from soak.__main__ import Outcome, page, run
from soak.lossy_disk import LossyDisk
from soak.tally import Tally, demand

pytestmark = pytest.mark.long


def test_nothing_acknowledged_is_lost_while_processes_are_killed(tmp_path: Path) -> None:
    counted = kills.run(tmp_path, 0, seconds=1)
    assert counted["kills"]
    assert counted["records acknowledged"] == counted["records verified"] + counted["records expired"]


def test_transactions_are_whole_while_their_producers_are_killed(tmp_path: Path) -> None:
    counted = transactions.run(tmp_path, 0, seconds=1)
    assert counted["kills"]
    assert counted["transactions acknowledged"] == counted["transactions verified"] > 0


def test_a_campaign_whose_processes_end_by_themselves_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> BaseProcess:
        process = multiprocessing.get_context("forkserver").Process(target=os.abort)
        process.start()
        return process

    monkeypatch.setattr(kills.Round, "_begin", begin)
    with pytest.raises(AssertionError, match="a process ended by itself, with -6"):
        kills.run(tmp_path, 0, seconds=10)


def test_the_processes_of_a_campaign_end_with_it(tmp_path: Path) -> None:
    """Also when it is killed: nobody is left to kill them."""
    code = f"from pathlib import Path; from soak import kills; kills.run(Path({str(tmp_path)!r}), 0, 600)"
    with Program(code) as campaign:
        acks, last = tmp_path / "round 0" / "acks", 0.0
        while not any(acks.glob("*.read")):
            assert campaign.poll() is None
            time.sleep(0.05)
        campaign.kill()
    for _ in range(100):
        before, last = last, max(path.stat().st_mtime for path in acks.iterdir())
        if before == last:
            return
        time.sleep(0.3)
    pytest.fail("they append and read without it")


def test_a_campaign_without_an_append_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object) -> BaseProcess:
        process = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(60,))
        process.start()
        return process

    monkeypatch.setattr(kills.Round, "_begin", begin)
    monkeypatch.setattr(kills, "PATIENCE_S", 0.1)
    with pytest.raises(AssertionError, match="no writer got as far as an append"):
        kills.run(tmp_path, 0, seconds=0.1)


def test_the_page_says_of_each_campaign_what_was_done_and_found() -> None:
    outcomes = {
        "kills": Outcome(Tally({"kills": 900, "records read": 3, "records": 1200}), 1.5, 2),
        "stops": Outcome(Tally({"stops": 5}), 0.26, 1, "seed 7: record 3 | is\n gone"),
        "tmpfs": Outcome(Tally(), 0.0, 1),
        "many": Outcome(Tally({"kills": 2, "takeovers": 1, "terms": 2}), 0.04, 1, is_cut=True),
    }
    text = page(outcomes, datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), 6)
    assert "2026-01-02 03:04 UTC, 1.8 minutes, from seed 6 on; " in text
    assert "**A promise was broken.**" in text
    assert text.splitlines()[-4:] == [
        "| kills | 2 | 1.5 | 900 (600 a minute) | 0 | 1,200 | 900 kills, 3 records read, 1,200 records | nothing |",
        "| stops | 1 | 0.3 | 0 | 5 | 0 | 5 stops | seed 7: record 3 \\| is gone |",
        "| tmpfs | 0 | 0.0 | 0 | 0 | 0 |  | was not run |",
        "| many | 1 | 0.0 | 3 (75 a minute) | 2 | 0 | 2 kills, 1 takeovers, 2 terms "
        "| nothing, the last run was interrupted |",
    ]


def test_campaigns_run_in_turn_until_one_finds_something(capsys: pytest.CaptureFixture[str]) -> None:
    def break_a_promise(folder: Path, seed: int) -> Tally:
        demand(seed < 5, "a record is gone")
        return Tally(records=1)

    outcomes = run({"good": lambda folder, seed: Tally(records=2), "bad": break_a_promise}, 1.0, 3)
    assert {name: (each.runs, each.tally["records"], each.found) for name, each in outcomes.items()} == {
        "good": (3, 6, ""),
        "bad": (3, 2, "seed 5: a record is gone"),
    }
    assert "bad, seed 5, what is left is in " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (OSError("no room"), "| 2 | 0.0 | 0 | 0 | 6 | 6 records | seed 4: the campaign failed, OSError: no room |"),
        (KeyboardInterrupt(), "| 0 | 0.0 | 0 | 0 | 0 |  | was not run, the last run was interrupted |"),
    ],
)
def test_a_campaign_that_fails_or_is_interrupted_leaves_the_page_of_the_others(
    error: BaseException, row: str
) -> None:
    """Also its own earlier runs are there."""

    def end(folder: Path, seed: int) -> Tally:
        if seed == 4 or isinstance(error, KeyboardInterrupt):
            raise error
        return Tally(records=6)

    outcomes = run({"good": lambda folder, seed: Tally({"records": 2, "segments at most": seed}), "bad": end}, 1, 3)
    good, bad = page(outcomes, datetime(2026, 1, 2, tzinfo=timezone.utc), 3).splitlines()[-2:]
    runs = 1 if isinstance(error, KeyboardInterrupt) else 2
    assert good.endswith(f"| {2 * runs} records, {runs + 2} segments at most | nothing |")
    assert bad.endswith(row)


def test_a_stopped_process_stops_nobody_for_ever(tmp_path: Path) -> None:
    assert stops.run(tmp_path, seed=0, stops=2)["records verified"]


@pytest.mark.parametrize("kind", disk_errors.KINDS)
def test_a_disk_that_fails_loses_nothing_quietly(tmp_path: Path, kind: str) -> None:
    counted = disk_errors.run(tmp_path, 0, kind, histories=2)
    if not counted:
        pytest.skip("this machine cannot make such a disk")
    assert counted["actions that failed"]
    assert counted["records verified"]


@pytest.mark.parametrize("seed", range(2))
def test_what_was_promised_outlives_power_losses(tmp_path: Path, seed: int) -> None:
    assert power.run(tmp_path, seed)["power losses"] == 4


def test_the_disk_of_that_campaign_loses_what_was_not_synced(tmp_path: Path) -> None:
    """What is synced stays; of the rest, each of the outcomes comes up: the old bytes, the new ones, some of both."""
    left = set()
    for seed in range(40):
        root = tmp_path / str(seed)
        root.mkdir()
        with pytest.MonkeyPatch.context() as patches:
            disk = LossyDisk(patches, root, random.Random(seed))
            file = os.open(root / "synced", os.O_RDWR | os.O_CREAT)
            folder = os.open(root, os.O_RDONLY)
            os.pwrite(file, b"a" * 8192, 0)
            os.fsync(file)
            os.fsync(folder)
            os.pwrite(file, b"b" * 8192, 0)
            os.close(os.open(root / "unsynced", os.O_RDWR | os.O_CREAT))
            disk.after_power_loss(tmp_path / f"left {seed}")
            disk.close()
            os.close(file)
            os.close(folder)
        data = (tmp_path / f"left {seed}" / "synced").read_bytes()
        assert len(data) == 8192
        left.add((data[:1], data[-1:], (tmp_path / f"left {seed}" / "unsynced").exists()))
    assert left == {(a, b, there) for a in (b"a", b"b") for b in (b"a", b"b") for there in (False, True)}


def test_a_search_is_wider_than_in_the_suite_and_fails_if_it_finds_something(tmp_path: Path) -> None:
    file = tmp_path / "test_wide.py"
    file.write_text("import os\n\ndef test_it():\n    assert os.environ['DISTLOG_SEARCH_FACTOR'] == '20'\n")
    assert searches.run(tmp_path, 0, file) == {"files searched": 1}
    with pytest.raises(AssertionError, match=r"test_wide\.py fails"):
        searches.run(tmp_path, 0, file, factor=1)
    assert len(searches.searching()) > 20

"""A few seconds of each crash campaign; `make soak` runs them for minutes."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest
from forked_programs import Program
from soak import disk_errors, kills, power, stops, transactions
from soak.lossy_disk import LossyDisk

pytestmark = pytest.mark.long


def test_nothing_acknowledged_is_lost_while_processes_are_killed(tmp_path: Path) -> None:
    counted = kills.run(tmp_path, 0, seconds=1)
    assert counted["kills"]
    assert counted["records acknowledged"] == counted["records verified"] + counted["records expired"]


def test_transactions_are_whole_while_their_producers_are_killed(tmp_path: Path) -> None:
    counted = transactions.run(tmp_path, 0, seconds=1)
    assert counted["kills"]
    assert counted["transactions acknowledged"] == counted["transactions verified"] > 0


def test_the_processes_of_a_campaign_end_with_it(tmp_path: Path) -> None:
    code = f"from pathlib import Path; from soak import kills; kills.run(Path({str(tmp_path)!r}), 0, 600)"
    with Program(code) as campaign:
        acks, last = tmp_path / "round 0" / "acks", 0.0
        while not any(acks.glob("*.read")):
            assert campaign.poll() is None
            time.sleep(0.05)
        campaign.kill()
    for _ in range(100):
        old_time, last = last, max(path.stat().st_mtime for path in acks.iterdir())
        if old_time == last:
            return
        time.sleep(0.3)
    pytest.fail("they append and read without it")


def test_a_stopped_process_never_blocks_others_forever(tmp_path: Path) -> None:
    assert stops.run(tmp_path, seed=0, stops=2)["records verified"]


@pytest.mark.parametrize("kind", disk_errors.KINDS)
def test_a_disk_that_fails_loses_nothing_quietly(tmp_path: Path, kind: str) -> None:
    counted = disk_errors.run(tmp_path, 0, kind, histories=2)
    if not counted:
        pytest.skip("this machine cannot create the faulty disk")
    assert counted["actions that failed"]
    assert counted["records verified"]


@pytest.mark.parametrize("seed", range(2))
def test_promises_outlive_power_losses(tmp_path: Path, seed: int) -> None:
    assert power.run(tmp_path, seed)["power losses"] == 4


def test_the_lossy_disk_loses_unsynced_writes(tmp_path: Path) -> None:
    """Synced writes stay; other writes have each outcome: the old bytes, the new bytes, or a mix."""
    outcomes = set()
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
        outcomes.add((data[:1], data[-1:], (tmp_path / f"left {seed}" / "unsynced").exists()))
    assert outcomes == {
        (a, b, is_present) for a in (b"a", b"b") for b in (b"a", b"b") for is_present in (False, True)
    }

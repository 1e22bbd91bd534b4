"""`check_store`: a good store passes unchanged, and each broken promise is named."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from careless_bucket import Bucket
from careless_bucket import bucket as bucket
from careless_bucket import new_process as new_process
from command_line import CommandLine
from every_storage import storage as storage

from distlog.core.storage import calls
from distlog.core.storage.storage import Storage, StoreReport, check_store
from distlog.core.times import now_ms

CHECKS = ["writes and reads", "ranges", "listings", "deletes", "clock", "a race for one name"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_RACES": 1, "_RACERS": 3, "_SAMPLES": 2, "_LARGE_BYTES": 1 << 20}.items():
        monkeypatch.setattr(f"distlog.core.storage.storage.{name}", value)


def checked(storage: Storage, clock: Callable[[], int] = now_ms) -> StoreReport:
    ticks = itertools.count()
    return check_store(storage, clock, lambda: float(next(ticks)))


def failed(report: StoreReport) -> list[str]:
    assert report.ok is False
    assert report.speeds == {}
    return [check.name for check in report.checks if check.ok is False]


def test_each_kind_of_storage_passes_unchanged(storage: Storage) -> None:
    storage.put("kept", b"1")
    report = checked(storage)
    assert (report.ok, [check.name for check in report.checks]) == (True, CHECKS)
    assert report.speeds == {
        **dict.fromkeys(("put_ms", "commit_ms", "range_ms", "list_ms"), 1000.0),
        **dict.fromkeys(("write_mb_per_s", "read_mb_per_s"), 1.048576),
    }
    assert ([file.name for file in storage.list()], storage.list_folders()) == (["kept"], [])


def test_a_missing_folder_is_not_created(tmp_path: Path) -> None:
    assert checked(Storage(tmp_path / "new")).ok
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["looks", "is_atomic"])
def test_a_store_where_several_writers_win_fails_by_the_race(bucket: type[Bucket], fault: str) -> None:
    setattr(bucket, fault, False)
    assert failed(checked(Storage("gs://bucket/logs"))) == ["a race for one name"]


def stale_read(real: Any) -> Any:
    return lambda self, name, start=0, end=None: b"old" if name == "f/a" else real(self, name, start, end)


def whole_read(real: Any) -> Any:
    return lambda self, name, start=0, end=None: real(self, name)


def late_listing(real: Any) -> Any:
    return lambda self, folder="": real(self, folder)[1:]


def deleted_later(real: Any) -> Any:
    return lambda self, names: None if "d/a" in names else real(self, names)


def an_hour_ahead(real: Any) -> Any:
    return lambda self, folder: now_ms() + 3_600_000


@pytest.mark.parametrize(
    ("method", "broken", "check"),
    [
        ("read", stale_read, "writes and reads"),
        ("read", whole_read, "ranges"),
        ("list", late_listing, "listings"),
        ("delete", deleted_later, "deletes"),
        ("now_ms", an_hour_ahead, "clock"),
    ],
)
def test_a_broken_promise_is_named(
    memory_url: Any, monkeypatch: pytest.MonkeyPatch, method: str, broken: Any, check: str
) -> None:
    monkeypatch.setattr(Storage, method, broken(getattr(Storage, method)))
    assert check in failed(checked(Storage(*memory_url)))


def test_a_server_that_is_down_fails_the_first_check_and_the_others_are_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls, "FIRST_TIMEOUT_S", 0.0)
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}
    report = checked(Storage("s3://bucket/logs", options))
    assert [check.ok for check in report.checks] == [False, *[None] * 5]
    assert "127.0.0.1:9 cannot be reached" in report.checks[0].about


def test_the_command_fails_for_an_unusable_store(cli: CommandLine, bucket: type[Bucket], tmp_path: Path) -> None:
    assert cli.bare("check-store", str(tmp_path / "new"), "--json").json["ok"] is True
    bucket.looks = False
    outcome = cli.bare("check-store", "gs://bucket/logs", "--json")
    assert (outcome.status, outcome.json["ok"]) == (1, False)
    shown = cli.bare("check-store", "gs://bucket/logs")
    assert (shown.status, shown.out.splitlines()[-1]) == (1, "gs://bucket/logs cannot hold a topic")

"""Checks whether a storage can hold a topic, and measures it; leaves no files."""

from __future__ import annotations

import os
import statistics
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from distlog.core.errors import DistlogError, StorageError, StorageRefusedError
from distlog.core.storage.backend import check_one_wins
from distlog.core.storage.storage import Storage

#: How far the store's clock and ours may be apart: S3 itself refuses requests from a quarter of an hour on.
MAX_CLOCK_SKEW_MS = 300_000
_RACES, _RACERS, _SAMPLES = 3, 16, 10
_SMALL, _LARGE_BYTES = bytes(1024), 32 << 20


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The result of one check; `ok` is None if it was not tried."""

    name: str
    ok: bool | None
    about: str


@dataclass(frozen=True, slots=True)
class StoreReport:
    """The results of `check_store`. `speeds` has medians in ms, and MB/s; it may be empty."""

    url: str
    checks: tuple[StoreCheck, ...]
    speeds: Mapping[str, float]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def __str__(self) -> str:
        words = {True: "ok", False: "FAILED", None: "not tried"}
        lines = [f"{check.name}: {words[check.ok]}{check.about and f', {check.about}'}" for check in self.checks]
        lines += [f"{name}: {value:,.1f}" for name, value in self.speeds.items()]
        return "\n".join([*lines, f"{self.url} {'can' if self.ok else 'cannot'} hold a topic"])

    def to_dict(self) -> dict[str, Any]:
        checks = [{"check": check.name, "ok": check.ok, "about": check.about} for check in self.checks]
        return {"url": self.url, "ok": self.ok, "checks": checks, "speeds": dict(self.speeds)}


class _WrongError(Exception):
    """The storage returned a wrong answer."""


def check_store(
    storage: Storage, clock: Callable[[], int], monotonic: Callable[[], float], *, is_measured: bool = True
) -> StoreReport:
    """Check the storage in a new folder; `clock` returns our time in ms, `monotonic` measures in seconds."""
    was_there = storage.is_there()
    folder = storage.child(f".distlog-check-{uuid.uuid4().hex}")
    results: list[StoreCheck] = []
    checks: dict[str, Callable[[], str]] = {
        "writes and reads": partial(_check_replaced, folder),
        "ranges": partial(_check_ranges, folder),
        "listings": partial(_check_listings, folder),
        "deletes": partial(_check_deletes, folder),
        "clock": partial(_check_clock, folder, clock),
        "a race for one name": partial(_check_races, folder),
    }
    is_met, is_clean = False, False
    try:
        for name, check in checks.items():
            if is_met:
                results.append(StoreCheck(name, None, ""))
                continue
            try:
                results.append(StoreCheck(name, True, check()))
            except _WrongError as wrong:
                results.append(StoreCheck(name, False, str(wrong)))
            except (DistlogError, OSError) as error:
                # later checks would fail too, after seconds
                is_met = True
                # after a refused first put a store has no files to delete; a disk may have folders
                is_refused = isinstance(error, StorageRefusedError) and not storage.counters.bytes_written
                is_clean = is_refused and not storage.is_local
                results.append(StoreCheck(name, False, str(error)))
        speeds = _speeds(folder, monotonic) if is_measured and all(check.ok for check in results) else {}
    finally:
        if not is_clean:
            _clear(storage, folder, was_there=was_there)
    return StoreReport(storage.url, tuple(results), speeds)


def _expect(is_right: bool, wrong: str) -> None:
    if not is_right:
        raise _WrongError(wrong)


def _check_replaced(folder: Storage) -> str:
    for data in (b"old", b"newer", b""):
        folder.put("f/a", data)
        _expect(folder.read("f/a") == data, "a read does not return the bytes just written")
    return ""


def _check_ranges(folder: Storage) -> str:
    data = bytes(range(256)) * 4096
    folder.put_many({"f/data": data, "f/empty": b""})
    size = len(data)
    for start, end in ((0, None), (1000, 2000), (size - 5, size + 5), (size, None), (2 * size, 3 * size)):
        _expect(folder.read("f/data", start, end) == data[start:end], f"wrong bytes from {start} to {end}")
    _expect(folder.read("f/empty") == folder.read("f/empty", 0, 10) == b"", "an empty object cannot be read")
    parts = folder.read_ranges([("f/data", 500_000, 500_100), ("f/data", 5, 10)])
    _expect([bytes(part) for part in parts] == [data[500_000:500_100], data[5:10]], "wrong bytes of several ranges")
    return ""


def _check_listings(folder: Storage) -> str:
    names = {f"l/{number:03d}": bytes(number) for number in range(1, 6)}
    folder.put_many({**names, "l/below/z": b"1"})
    sizes = {file.name: file.size for file in folder.list("l")}
    _expect(
        sizes == {name: len(data) for name, data in names.items()}, "a listing does not have the files just written"
    )
    _expect(folder.list_folders("l") == ["l/below"], "folders are not listed as folders")
    _expect(folder.list("nothing") == [], "a missing folder is not listed as empty")
    return ""


def _check_deletes(folder: Storage) -> str:
    folder.put_many({"d/a": b"1", "d/b": b"2"})
    folder.delete(["d/a", "d/missing"])
    _expect([file.name for file in folder.list("d")] == ["d/b"], "a deleted object is listed")
    with suppress(FileNotFoundError):
        folder.read("d/a")
        raise _WrongError("a deleted object can be read")
    return ""


def _check_clock(folder: Storage, clock: Callable[[], int]) -> str:
    folder.put("c/a", b"1")
    before_ms = clock()
    ahead_ms = folder.now_ms("c") - before_ms
    _expect(abs(ahead_ms) <= MAX_CLOCK_SKEW_MS, f"it is {ahead_ms:+,} ms from this machine's: set the clocks")
    return f"{ahead_ms:+,} ms from this machine's"


def _check_races(folder: Storage) -> str:
    for name in (f"r/{number}" for number in range(_RACES)):
        put, delete = partial(folder.put_if_absent, name), partial(folder.delete, [name])
        check_one_wins(put, delete, folder.url, racers=_RACERS)
    return f"{_RACES} of {_RACERS} writers had one winner each"


def _speeds(folder: Storage, monotonic: Callable[[], float]) -> dict[str, float]:
    def median_ms(call: Callable[[int], object]) -> float:
        return statistics.median(_seconds(partial(call, number), monotonic) for number in range(_SAMPLES)) * 1000

    data = os.urandom(1 << 20) * (_LARGE_BYTES >> 20)

    def write() -> None:
        with folder.open_write("s/large") as writer:
            writer.write(data)

    step = 4 << 20
    parts = [("s/large", start, min(start + step, _LARGE_BYTES)) for start in range(0, _LARGE_BYTES, step)]
    return {
        "put_ms": median_ms(lambda number: folder.put(f"s/{number}", _SMALL)),
        "commit_ms": median_ms(lambda number: folder.put_if_absent(f"p/{number}", _SMALL)),
        "range_ms": median_ms(lambda number: folder.read(f"s/{number}", 100, 200)),
        "list_ms": median_ms(lambda number: folder.list("s")),
        "write_mb_per_s": _LARGE_BYTES / 1e6 / _seconds(write, monotonic),
        "read_mb_per_s": _LARGE_BYTES / 1e6 / _seconds(lambda: folder.read_ranges(parts), monotonic),
    }


def _seconds(call: Callable[[], object], monotonic: Callable[[], float]) -> float:
    start = monotonic()
    call()
    return max(monotonic() - start, 1e-9)


def _clear(storage: Storage, folder: Storage, *, was_there: bool) -> None:
    """Delete the files of the checks, ignoring errors, which the checks have reported."""
    with suppress(StorageError, OSError):
        for part in [*folder.list_folders(), *folder.list_folders("l")]:
            folder.delete([file.name for file in folder.list(part)])
    if storage.is_local:
        path = folder.local_path("").rstrip("/")
        for part in ("l/below", "f", "l", "d", "c", "r", "s", "p", ""):
            with suppress(OSError):
                os.rmdir(f"{path}/{part}")
        if not was_there:
            with suppress(OSError):
                os.rmdir(storage.local_path(""))

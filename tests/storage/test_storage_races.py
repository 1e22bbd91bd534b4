"""Many processes put the same names concurrently: each name has one winner, which all the losers get."""

from __future__ import annotations

import multiprocessing
from collections import Counter
from typing import Any

import pytest

from distlog.core.storage.storage import Storage


def put_all(address: tuple[str, dict[str, Any]], writer: int, names: list[str], start: Any, results: Any) -> None:
    """In one of the processes: put every name at the same moment as all writers, and report the stored bytes."""
    storage = Storage(*address)
    storage.list()
    stored = []
    for name in names:
        start.wait(60)
        stored.append((name, writer, storage.put_if_absent(name, f"writer {writer} of {name}".encode())))
    results.put(stored)


def race(address: tuple[str, dict[str, Any]], writers: int, names: list[str]) -> list[tuple[str, int, bytes]]:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["distlog.core.storage.storage", "s3fs"])
    start, results = processes.Barrier(writers), processes.Queue()
    running = [
        processes.Process(target=put_all, args=(address, writer, names, start, results), daemon=True)
        for writer in range(writers)
    ]
    for process in running:
        process.start()
    reports = [results.get(timeout=120) for _ in running]
    for process in running:
        process.join(60)
    return [entry for report in reports for entry in report]


@pytest.mark.parametrize(
    ("kind", "writers", "count"),
    [("local", 8, 50), pytest.param("s3", 4, 5, marks=pytest.mark.s3)],
)
def test_each_name_has_one_winner_in_every_process(
    kind: str, writers: int, count: int, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    address = (str(tmp_path), {}) if kind == "local" else tuple(request.getfixturevalue("s3_url"))
    names = [f"_commits/{version:020d}.json" for version in range(count)]
    entries = race(address, writers, names)
    assert len(entries) == writers * count
    winners = Counter(name for name, writer, standing in entries if standing == f"writer {writer} of {name}".encode())
    assert winners == dict.fromkeys(names, 1)
    storage = Storage(*address)
    assert {(name, standing) for name, _, standing in entries} == {(name, storage.read(name)) for name in names}
    assert len(storage.list("_commits")) == count

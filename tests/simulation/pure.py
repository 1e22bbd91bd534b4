"""Computations that all processes of a world share: decoded commits and checkpoints, and their folds.

Each process of a history reads the same commits. The functions are pure and their values constant, so a history
is the same with and without this module, and takes half the time. A snapshot has one mutable field, which belongs to
its process, so each process gets a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Any
from unittest import mock

from distlog.core.commits import checkpoint, commit_log, snapshot_loader
from distlog.core.commits import snapshot as snapshots
from distlog.core.commits.actions import Commit
from distlog.core.commits.snapshot import Snapshot
from distlog.core.read.consumer_group import GroupState
from distlog.core.storage import object_client

_FIELDS = tuple(field.name for field in dataclasses.fields(Snapshot))
_STATE = tuple(name for name in _FIELDS if name != "seen_ms")
_values_of, _state_of = attrgetter(*_FIELDS), attrgetter(*_STATE)
_PUTS = tuple(getattr(Snapshot, name).__set__ for name in _FIELDS)
_put_seen_ms = _PUTS[_FIELDS.index("seen_ms")]


class _Folds:
    """The results of folds by the ids of their inputs, which it keeps so that no other object gets the same id."""

    def __init__(self, fold: Callable[[Snapshot | None, Iterable[Commit]], Snapshot]) -> None:
        self._fold, self._results = fold, dict[tuple[int, ...], tuple[Snapshot, Snapshot | None, Sequence[Commit]]]()

    def fold(self, head: Snapshot | None, commits: Iterable[Commit]) -> Snapshot:
        remaining, state = list(commits), head
        # first use the folds of single commits by other processes
        while remaining and (step := self._results.get(_key(state, remaining[:1]))) is not None:
            state, remaining = step[0], remaining[1:]
        if remaining or state is None:
            key = _key(state, remaining)
            result = self._results.get(key)
            if result is None:
                result = self._results[key] = self._fold(state, remaining), state, remaining
            state = result[0]
        snapshot = _copy(state)
        _put_seen_ms(snapshot, 0 if head is None else head.seen_ms)
        return snapshot


def _key(head: Snapshot | None, commits: Sequence[Commit]) -> tuple[int, ...]:
    return (*(() if head is None else map(id, _state_of(head))), *map(id, commits))


def _copy(head: Snapshot) -> Snapshot:
    copy = object.__new__(Snapshot)
    for put, value in zip(_PUTS, _values_of(head), strict=True):
        put(copy, value)
    return copy


def _cached(work: Callable[..., Any]) -> Callable[..., Any]:
    results = dict[tuple[Any, ...], Any]()

    def do(data: bytes, file: str, *more: bytes) -> Any:
        key = bytes(data), file, *more
        if key not in results:
            results[key] = work(data, file, *more)
        return results[key]

    return do


#: A larger cache than the library's: the times of a history come again in each process.
_date_ms = lru_cache(10_000)(object_client._date_ms.__wrapped__)


@contextmanager
def computed_once() -> Iterator[None]:
    """Share these computations within one history."""
    commit, state = _cached(Commit.decode), _cached(checkpoint.decode)
    group = _cached(GroupState.decode)
    folds = _Folds(snapshots.fold)
    fold = folds.fold
    with (
        mock.patch.object(Commit, "decode", commit),
        mock.patch.object(GroupState, "decode", group),
        mock.patch.object(object_client, "_date_ms", _date_ms),
        mock.patch.object(checkpoint, "decode", lambda *arguments: _copy(state(*arguments))),
        mock.patch.object(snapshots, "fold", fold),
        mock.patch.object(snapshot_loader, "fold", fold),
        mock.patch.object(commit_log, "apply", lambda head, commit: fold(head, [commit])),
    ):
        yield

"""What all processes of a world compute alike is computed once: commits and checkpoints of bytes, and their folds.

Each process of a history reads the same commits. These functions are pure, and their values are not changed, so a
history is the same with and without this, and takes half of the time. A snapshot learns one thing later, which is its
process's own: so each one gets a copy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from operator import attrgetter
from typing import Any
from unittest import mock

from distlog.core.commits import checkpoint, prepared_commit, snapshot_loader
from distlog.core.commits import snapshot as snapshots
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.snapshot import Snapshot
from distlog.core.read.group_log import GroupState
from distlog.core.storage import object_client

_FIELDS = tuple(each.name for each in dataclasses.fields(Snapshot))
_STATE = tuple(name for name in _FIELDS if name != "seen_ms")
_values_of, _state_of = attrgetter(*_FIELDS), attrgetter(*_STATE)
_PUTS = tuple(getattr(Snapshot, name).__set__ for name in _FIELDS)
_put_seen_ms = _PUTS[_FIELDS.index("seen_ms")]


class _Folds:
    """Folds by what they fold; it keeps that, so that no other object gets the same id."""

    def __init__(self, fold: Callable[[Snapshot | None, Iterable[Commit]], Snapshot]) -> None:
        self._fold, self._known = fold, dict[tuple[int, ...], tuple[Snapshot, Snapshot | None, Sequence[Commit]]]()

    def fold(self, head: Snapshot | None, commits: Iterable[Commit]) -> Snapshot:
        """As `snapshot.fold`."""
        rest, at = list(commits), head
        # first what the writers of these commits, and others, have folded one by one
        while rest and (step := self._known.get(_key(at, rest[:1]))) is not None:
            at, rest = step[0], rest[1:]
        if rest or at is None:
            key = _key(at, rest)
            known = self._known.get(key)
            if known is None:
                known = self._known[key] = self._fold(at, rest), at, rest
            at = known[0]
        made = _copy(at)
        _put_seen_ms(made, 0 if head is None else head.seen_ms)
        return made


def _key(head: Snapshot | None, commits: Sequence[Commit]) -> tuple[int, ...]:
    return (*(() if head is None else map(id, _state_of(head))), *map(id, commits))


def _copy(head: Snapshot) -> Snapshot:
    made = object.__new__(Snapshot)
    for put, value in zip(_PUTS, _values_of(head), strict=True):
        put(made, value)
    return made


def _once(work: Callable[..., Any]) -> Callable[..., Any]:
    known = dict[tuple[Any, ...], Any]()

    def do(data: bytes, file: str, *more: bytes) -> Any:
        key = bytes(data), file, *more
        if key not in known:
            known[key] = work(data, file, *more)
        return known[key]

    return do


#: The library keeps few: those of a history come again in each process, and those of its begin in each history.
_date_ms = lru_cache(10_000)(object_client._date_ms.__wrapped__)


@contextmanager
def computed_once() -> Iterator[None]:
    """Compute these things once, for one history."""
    commit, state = _once(Commit.decode), _once(checkpoint.decode)
    group = _once(GroupState.decode)
    folds = _Folds(snapshots.fold)
    fold = folds.fold
    with (
        mock.patch.object(Commit, "decode", commit),
        mock.patch.object(GroupState, "decode", group),
        mock.patch.object(object_client, "_date_ms", _date_ms),
        mock.patch.object(checkpoint, "decode", lambda *given: _copy(state(*given))),
        mock.patch.object(snapshots, "fold", fold),
        mock.patch.object(snapshot_loader, "fold", fold),
        mock.patch.object(prepared_commit, "apply", lambda head, commit: fold(head, [commit])),
    ):
        yield

"""Computations that the processes of a world share are done once, without a change of the history."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from distlog.core.commits.actions import Commit
from simulation import history
from simulation.kinds import ON_STORE


def test_a_history_is_the_same_when_each_process_computes_everything_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, decoded, decode = ON_STORE.plan(29), list[str](), Commit.decode

    def counted(data: bytes, file: str) -> Commit:
        decoded.append(file)
        return decode(data, file)

    monkeypatch.setattr(Commit, "decode", counted)
    shared, error = ON_STORE.history(drawn, traced=True)
    assert error is None
    once_count = len(decoded)
    monkeypatch.setattr(history, "computed_once", nullcontext)
    alone, error = ON_STORE.history(drawn, traced=True)
    assert error is None
    assert shared.story == alone.story
    assert len(decoded) - once_count > 2 * once_count > 0

"""What processes of a world compute alike is computed once, and a history does not change by it."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from distlog.core.commits.commit_json import Commit
from simulation import history
from simulation.kinds import ON_STORE


def test_a_history_is_the_same_when_each_process_computes_all_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, decoded, decode = ON_STORE.plan(29), list[str](), Commit.decode

    def counted(data: bytes, file: str) -> Commit:
        decoded.append(file)
        return decode(data, file)

    monkeypatch.setattr(Commit, "decode", counted)
    shared, error = ON_STORE.history(drawn, traced=True)
    assert error is None
    once = len(decoded)
    monkeypatch.setattr(history, "computed_once", nullcontext)
    alone, error = ON_STORE.history(drawn, traced=True)
    assert error is None
    assert shared.story == alone.story
    assert len(decoded) - once > 2 * once > 0

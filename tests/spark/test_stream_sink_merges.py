"""The sink of a stream merges small segments as it goes: no query fails or loses anything by that."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sink_queries import Query, segments_of, values
from sink_queries import topic as topic

import distlog
from distlog.core.errors import CommitConflictError, CommitStateUnknownError


def test_small_segments_are_merged_unless_the_option_says_no(topic: distlog.Topic) -> None:
    query = Query(topic.url, mergeSegments="false")
    for number in range(9):
        query.batch(number, "a")
    assert segments_of(topic) == 9
    Query(topic.url).batch(9, "b")
    assert segments_of(topic) == 1
    assert values(topic) == ["a"] * 9 + ["b"]
    assert topic.refresh().end_offsets() == {0: 10}


@pytest.mark.parametrize("error", [CommitConflictError("lost"), OSError("disk"), CommitStateUnknownError("?")])
def test_a_merge_that_fails_does_not_fail_the_query(
    topic: distlog.Topic,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*given: Any, **options: Any) -> None:
        raise error

    query = Query(topic.url)
    with monkeypatch.context() as broken:
        broken.setattr("distlog.core.maintenance.merge.merge_groups", fail)
        for number in range(9):
            query.batch(number, "a")
    assert caplog.text.count("small segments of clicks were not merged") == 2
    assert (segments_of(topic), len(values(topic))) == (9, 9)
    query.batch(9, "a")
    assert (segments_of(topic), len(values(topic))) == (1, 10)


def test_a_segment_that_cannot_be_read_is_told_of_and_the_query_goes_on(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    (log,) = Path(topic.url).glob("*/*.log")
    log.write_bytes(log.read_bytes()[:-1] + b"!")
    for number in range(1, 9):
        query.batch(number, "a")
    assert "cannot merge offsets 0 to 8 of partition 0" in caplog.text
    assert topic.refresh().end_offsets() == {0: 9}


def test_a_merge_beside_a_merge_loses_nothing(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    query, merging = Query(topic.url), threading.Lock()
    from distlog.core.maintenance import merge as merging_module

    real: Callable[..., Any] = merging_module.do_job

    def late(*given: Any, **options: Any) -> Any:
        if merging.acquire(blocking=False):
            distlog.open(topic.url).compact()
            merging.release()
        return real(*given, **options)

    monkeypatch.setattr(merging_module, "do_job", late)
    for number in range(12):
        query.batch(number, f"{number}")
    assert values(topic) == [f"{number}" for number in range(12)]
    assert "not merged" not in caplog.text
    assert topic.verify().ok

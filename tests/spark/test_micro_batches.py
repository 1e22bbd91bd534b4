"""Micro-batches that are written again, twice, or not at all, as Spark may do it; without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from planned_writes import commit, of_micro_batch, values, write, writer

import distlog
from distlog.core.errors import InvalidRecordError
from distlog.spark import sink


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"), partitions=2)


def test_a_micro_batch_that_is_repeated_after_a_restart_is_written_once(topic: distlog.Topic) -> None:
    for run in ("before", "after"):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, "a"), run))
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned, "b"), "after", batch=4))
    assert values(topic) == ["a", "b"]


def test_spark_may_ask_twice_for_the_commit_of_a_micro_batch_that_is_repeated(topic: distlog.Topic) -> None:
    for run in ("before", "after"):
        planned = writer(topic.url)
        message = of_micro_batch(write(planned, "a"), run)
        commit(planned, message)
        commit(planned, message)
    second = writer(topic.url)
    with pytest.raises(InvalidRecordError, match="its own txnAppId"):
        commit(second, of_micro_batch(write(second, "a"), "after"))
    assert values(topic) == ["a"]


@pytest.mark.parametrize(("run", "rows"), [("same", ["b"]), ("other", ["b", "c"])])
def test_a_second_write_of_a_micro_batch_is_an_error_and_not_lost(
    topic: distlog.Topic, run: str, rows: list[str]
) -> None:
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned, "a"), "same"))
    second = writer(topic.url)
    with pytest.raises(InvalidRecordError, match="its own txnAppId"):
        commit(second, of_micro_batch(write(second, *rows), run))
    named = writer(topic.url, txnAppId="second", txnVersion="3")
    commit(named, of_micro_batch(write(named, *rows), run))
    assert values(topic) == ["a", *rows]


def test_a_second_write_of_a_micro_batch_is_an_error_in_every_run(topic: distlog.Topic) -> None:
    for run in ("one", "two", "three"):
        first, second = writer(topic.url), writer(topic.url)
        messages = of_micro_batch(write(first, "a"), run), of_micro_batch(write(second, "b"), run)
        commit(first, messages[0])
        with pytest.raises(InvalidRecordError, match="its own txnAppId"):
            commit(second, messages[1])
        assert values(topic) == ["a"]


def test_of_two_writes_of_a_micro_batch_at_once_the_second_is_not_lost_in_silence(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = writer(topic.url), writer(topic.url)
    messages = of_micro_batch(write(first, "a"), "run"), of_micro_batch(write(second, "b"), "run")
    real = sink.commit_append

    def late(*given: Any, **options: Any) -> Any:
        monkeypatch.undo()
        commit(first, messages[0])
        return real(*given, **options)

    monkeypatch.setattr(sink, "commit_append", late)
    with pytest.raises(InvalidRecordError, match="its own txnAppId"):
        commit(second, messages[1])
    assert values(topic) == ["a"]


def test_micro_batches_merge_small_segments_and_other_writes_only_if_they_are_told(topic: distlog.Topic) -> None:
    topic = distlog.create(topic.url + "-of-one")
    for _ in range(9):
        planned = writer(topic.url)
        commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 9
    planned = writer(topic.url, mergeSegments="true")
    commit(planned, write(planned, "a"))
    assert topic.refresh().segments().num_rows == 1
    for number in range(8):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, "a"), "run", number))
    assert topic.refresh().segments().num_rows == 2
    assert values(topic) == 18 * ["a"]


def test_a_micro_batch_without_rows_is_no_commit(topic: distlog.Topic) -> None:
    planned = writer(topic.url)
    commit(planned, of_micro_batch(write(planned), "run"))
    assert topic.refresh().version == 0


def test_a_micro_batch_below_the_last_is_skipped(topic: distlog.Topic) -> None:
    for number, run in ((7, "run"), (3, "another run")):
        planned = writer(topic.url)
        commit(planned, of_micro_batch(write(planned, f"{number}"), run, number))
    assert values(topic) == ["7"]

"""Which micro-batch is one that a stream's sink has had before; it is in the topic once, whatever was lost."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from conftest import S3Server
from fault_proxy import LOSE_REPLY, FaultProxy
from sink_queries import Query, result_of, values
from sink_queries import topic as topic
from topics import files, named_files

import distlog
from distlog.core.errors import CommitConflictError, CommitStateUnknownError
from distlog.core.storage.storage import Storage


def test_a_batch_that_comes_again_keeps_its_offsets_and_its_files_are_left_to_vacuum(topic: distlog.Topic) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    query.batch(1, "b")
    first, named = result_of(topic, "query", 1), files(topic.storage)
    assert named == named_files(topic)
    restarted = Query(topic.url)
    restarted.batch(1, "b")
    restarted.batch(2, "c")
    assert values(topic) == ["a", "b", "c"]
    assert result_of(topic, "query", 1) == first
    left = files(topic.storage) - named_files(topic)
    assert sorted(Path(name).suffix for name in left) == [".log", ".timeindex"]


def test_batches_are_told_as_done_quietly_when_they_come_again(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    with caplog.at_level(logging.INFO):
        query.batch(0, "a")
    assert "batch 0 of query is in version 1 of clicks already" in caplog.text
    assert [record.levelname for record in caplog.records if "batch 0" in record.message] == ["INFO"]


def test_a_batch_that_comes_again_with_other_rows_is_skipped_and_told_of(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(0, "a")
    query.batch(0, "a", "b")
    assert values(topic) == ["a"]
    assert "batch 0 of query was skipped: it has 2 records now, and had 1 in version 1 of clicks" in caplog.text


def test_a_batch_below_the_last_is_skipped_and_told_of(
    topic: distlog.Topic, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(topic.url)
    query.batch(7, "a")
    query.batch(3, "b")
    assert values(topic) == ["a"]
    assert "batch 3 of query was skipped, since clicks has a later one" in caplog.text
    query.batch(8, "c")
    assert values(topic) == ["a", "c"]


def test_a_new_checkpoint_is_a_new_query(topic: distlog.Topic) -> None:
    Query(topic.url, "old").batch(0, "a")
    Query(topic.url, "new").batch(0, "a")
    assert values(topic) == ["a", "a"]


def test_txnAppId_stands_for_the_query_over_all_its_checkpoints(topic: distlog.Topic) -> None:  # noqa: N802
    Query(topic.url, "old", txnAppId="clicks").batch(0, "a")
    Query(topic.url, "new", txnAppId="clicks").batch(0, "a")
    Query(topic.url, "new", txnAppId="clicks").batch(1, "b")
    assert values(topic) == ["a", "b"]
    assert result_of(topic, "new", 1) is None


def test_without_the_id_of_the_query_nothing_is_committed_unless_txnAppId_is_given(  # noqa: N802
    topic: distlog.Topic,
) -> None:
    unknown = Query(topic.url, query_id="")
    with pytest.raises(CommitConflictError, match="give the option txnAppId"):
        unknown.batch(0, "a")
    assert values(topic) == []
    Query(topic.url, query_id="", txnAppId="clicks").batch(0, "a")
    assert values(topic) == ["a"]


@pytest.mark.parametrize("landed", [True, False])
def test_after_an_unknown_outcome_the_batch_is_there_once(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    query, real = Query(topic.url), Storage.put_if_absent

    def no_answer(storage: Storage, name: str, data: bytes, **options: Any) -> bytes:
        if landed:
            real(storage, name, data, **options)
        raise CommitStateUnknownError("no answer")

    messages = query.write(0, ["a"])
    with monkeypatch.context() as broken:
        broken.setattr(Storage, "put_if_absent", no_answer)
        with pytest.raises(CommitStateUnknownError):
            query.commit(0, messages)
    Query(topic.url).batch(0, "a")
    assert values(topic) == ["a"]
    assert topic.refresh().version == 1


def test_a_commit_whose_reply_was_lost_is_one_commit(s3_server: S3Server) -> None:
    address = s3_server.address()
    topic = distlog.create(address.url, storage_options=address.options)
    with FaultProxy(s3_server.endpoint) as proxy:
        options = {**address.options, "endpoint_url": proxy.url}
        query = Query(address.url, **{f"storage.{name}": value for name, value in options.items()})
        messages = query.write(0, ["a"])
        proxy.inject("PUT", LOSE_REPLY, path="*/_commits/*")
        query.commit(0, messages)
    assert values(topic) == ["a"]
    assert topic.version == 1

"""Faults during an append: an acknowledged record is stored once, and an unknown append is whole or missing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from addresses import Address, S3Server
from fault_proxy import CUT, FOREVER, LOSE_REPLY, Fault, FaultProxy, act_but_answer, answer
from topics import contents, files, named_files, topic_on, values

from distlog.core.errors import (
    CommitConflictError,
    CommitStateUnknownError,
    StorageError,
    TopicNotFoundError,
)
from distlog.core.storage import calls
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms
from distlog.core.topic import Topic

COMMIT = "*/_commits/0*.json"
V1, V2 = {0: [b"v1"]}, {0: [b"v1", b"v2"]}


@pytest.fixture(scope="module")
def running_proxy(s3_server: S3Server) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint) as running:
        yield running


@pytest.fixture
def other(s3_url: Address) -> Topic:
    """The topic without faults, with one record."""
    topic = topic_on(Storage(*s3_url), 1)
    topic.append(values([1]))
    return topic


@pytest.fixture
def proxy(running_proxy: FaultProxy, topic: Topic) -> FaultProxy:
    running_proxy.reset()
    return running_proxy


@pytest.fixture
def topic(running_proxy: FaultProxy, other: Topic, s3_url: Address, monkeypatch: pytest.MonkeyPatch) -> Topic:
    """The same topic through the proxy, with short pauses before a retry."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.002)
    running_proxy.reset()
    return topic_on(Storage(s3_url.url, {**s3_url.options, "endpoint_url": running_proxy.url}))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Storage.put_if_absent
    monkeypatch.setattr(Storage, "put_if_absent", lambda self, name, data, **_: real(self, name, data, timeout_s=0.2))
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 0.2)


def request_names(proxy: FaultProxy) -> list[str]:
    return [f"{request.method} {_request_name(request.path)}" for request in proxy.requests]


def _request_name(path: str) -> str:
    name = path.rpartition("/")[2]
    if name.endswith(".json") and not name.startswith("v"):
        return f"commit {int(name[:20])}"
    return name if name.startswith("_") else f".{name.partition('.')[2]}"


@pytest.mark.s3
def test_a_commit_with_transient_faults_happens_once(topic: Topic, proxy: FaultProxy, other: Topic) -> None:
    proxy.inject("PUT", act_but_answer(412, "PreconditionFailed"), path=COMMIT)
    assert topic.append(values([2])).offsets == {0: (1, 2)}
    proxy.inject("PUT", CUT, path=COMMIT)
    proxy.inject("PUT", answer(503, "SlowDown"), path=COMMIT)
    proxy.inject("PUT", LOSE_REPLY, path=COMMIT)
    assert topic.append(values([3])).offsets == {0: (2, 3)}
    assert contents(other.refresh()) == {0: [b"v1", b"v2", b"v3"]}
    assert proxy.count("PUT", "*.log") == 2


@pytest.mark.s3
def test_a_lost_response_before_foreign_commits_is_resolved(
    topic: Topic, proxy: FaultProxy, other: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = topic.transaction("app", 1)
    transaction.append(values([2]))
    proxy.inject("PUT", LOSE_REPLY, path=COMMIT)
    real = proxy.fault_for

    def others_come_first(method: str, path: str, query: str) -> Fault | None:
        if method == "GET" and other.version == 1:
            other.append(values([3]))
        return real(method, path, query)

    monkeypatch.setattr(proxy, "fault_for", others_come_first)
    assert transaction.commit().offsets == {0: (1, 2)}
    assert topic.append(values([2]), app_id="app", batch_id=1).replayed
    assert contents(topic) == contents(other) == {0: [b"v1", b"v2", b"v3"]}


@pytest.mark.s3
@pytest.mark.parametrize("fault", [None, LOSE_REPLY, answer(409, "ConditionalRequestConflict")])
def test_a_lost_race_moves_the_offsets_and_rewrites_no_file(
    fault: Fault | None, topic: Topic, proxy: FaultProxy, other: Topic
) -> None:
    transaction = topic.transaction()
    transaction.append(values([2]))
    other.append(values([5, 6]))
    if fault:
        proxy.inject("PUT", fault, path=COMMIT)
    assert transaction.commit().offsets == {0: (3, 4)}
    # after one foreign commit the append does not queue, so no pending file exists
    written = [request for request in request_names(proxy) if request.startswith("PUT") and "commit" not in request]
    assert sorted(written) == ["PUT .log", "PUT .timeindex"]
    assert contents(other.refresh()) == {0: [b"v1", b"v5", b"v6", b"v2"]}


@pytest.mark.s3
@pytest.mark.parametrize("landed", [False, True])
def test_without_a_response_the_outcome_is_unknown_and_the_files_stay(
    landed: bool, topic: Topic, proxy: FaultProxy, other: Topic, impatient: None, s3_url: Address
) -> None:
    proxy.inject("PUT", LOSE_REPLY if landed else CUT, path=COMMIT, times=FOREVER)
    proxy.inject("GET", CUT, path=COMMIT, skip=1, times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="keep all files"):
        topic.append(values([2]), app_id="app", batch_id=1)
    assert proxy.count("DELETE") == proxy.count("POST") == 0
    assert len(files(Storage(*s3_url))) == 4
    proxy.reset()
    again = topic.append(values([2]), app_id="app", batch_id=1)
    assert (again.offsets, again.replayed) == ({0: (1, 2)}, landed)
    assert contents(other.refresh()) == V2


@pytest.mark.s3
@pytest.mark.parametrize("suffix", [".log", ".timeindex"])
def test_a_file_with_a_transient_fault_is_written_again(
    suffix: str, topic: Topic, proxy: FaultProxy, other: Topic
) -> None:
    proxy.inject("PUT", answer(500, "InternalError"), path=f"*{suffix}", times=2)
    proxy.inject("PUT", LOSE_REPLY, path=f"*{suffix}")
    assert topic.append(values([2])).offsets == {0: (1, 2)}
    assert contents(other.refresh()) == V2


@pytest.mark.s3
@pytest.mark.parametrize("suffix", [".log", ".timeindex"])
def test_a_file_that_is_refused_ends_the_append_before_the_commit(
    suffix: str, topic: Topic, proxy: FaultProxy, other: Topic
) -> None:
    proxy.inject("PUT", answer(403, "AccessDenied"), path=f"*{suffix}", times=FOREVER)
    with pytest.raises(StorageError):
        topic.append(values([2]))
    assert proxy.count("PUT", COMMIT) == 0
    assert contents(other.refresh()) == V1
    proxy.reset()
    assert topic.append(values([2])).offsets == {0: (1, 2)}


@pytest.mark.s3
def test_a_broken_upload_is_aborted(topic: Topic, proxy: FaultProxy, other: Topic, s3_url: Address) -> None:
    proxy.inject("PUT", answer(403, "AccessDenied"), path="*.log", skip=1, times=FOREVER)
    with pytest.raises(StorageError):
        topic.append([{"value": b"x" * 1_000_000}] * 26)
    assert proxy.count("PUT", COMMIT) == 0
    assert proxy.count("DELETE", "*.log") == 1
    assert files(Storage(*s3_url)) == named_files(other.refresh())


@pytest.mark.s3
@pytest.mark.parametrize("again", [False, True])
def test_the_topic_is_dropped_under_a_live_writer(again: bool, topic: Topic, other: Topic, s3_url: Address) -> None:
    transaction, writer = topic.transaction(), topic.writer(linger_ms=10**6)
    transaction.append(values([2]))
    writer.append(b"v3")
    other.drop()
    if again:
        other = topic_on(Storage(*s3_url), 1)
    with pytest.raises(CommitConflictError, match="the topic was dropped"):
        transaction.commit()
    for call in (writer.flush, lambda: writer.append(b"v4"), writer.close):
        with pytest.raises(TopicNotFoundError, match="the topic was dropped"):
            call()
    if again:
        assert contents(other.refresh()) == {0: []}


@pytest.mark.s3
def test_an_append_is_one_get_its_files_and_one_put(topic: Topic, proxy: FaultProxy) -> None:
    topic.append(values([2]))
    assert sorted(request_names(proxy)) == ["GET commit 2", "PUT .log", "PUT .timeindex", "PUT commit 2"]
    assert request_names(proxy)[0] == "GET commit 2"
    assert request_names(proxy)[-1] == "PUT commit 2"
    proxy.reset()
    topic.append([{"value": b"x", "timestamp": -1}])
    assert request_names(proxy) == ["GET commit 3", "PUT .log", "PUT commit 3"]
    proxy.reset()
    topic.append([{"value": b"x" * 10_000}] * 100)
    assert sorted(request_names(proxy)) == [
        "GET commit 4",
        "PUT .index",
        "PUT .log",
        "PUT .timeindex",
        "PUT commit 4",
    ]


@pytest.mark.s3
def test_a_replay_is_one_get(topic: Topic, proxy: FaultProxy) -> None:
    topic.append(values([2]), app_id="app", batch_id=1)
    proxy.reset()
    assert topic.append(values([2]), app_id="app", batch_id=1).replayed
    assert request_names(proxy) == ["GET commit 3"]


@pytest.mark.s3
def test_a_refresh_is_a_get_per_commit_and_one_more(topic: Topic, proxy: FaultProxy, other: Topic) -> None:
    topic.refresh()
    assert request_names(proxy) == ["GET commit 2"]
    proxy.reset()
    for number in range(3):
        other.append(values([number]))
    assert topic.refresh().version == 4
    assert set(request_names(proxy)) >= {"GET commit 2", "GET commit 3", "GET commit 4", "GET commit 5"}
    assert len(request_names(proxy)) <= 6


@pytest.mark.s3
def test_a_topic_with_a_checkpoint_is_opened_without_a_listing(
    topic: Topic, proxy: FaultProxy, s3_url: Address
) -> None:
    # by the server's time the commits are recent; with an old time later ones could be deleted, which costs a listing
    writer = topic_on(Storage(*s3_url), clock=now_ms, checkpoint_commits=5)
    for number in range(2, 7):
        writer.append(values([number]))
    proxy.reset()
    assert topic_on(topic.storage).version == 6
    requests = request_names(proxy)
    assert requests[0] == "GET _last_checkpoint"
    state, commit = sorted(requests[1:3])
    assert commit == "HEAD commit 5"
    assert state.endswith(".checkpoint.arrow.zst")
    assert sorted(requests[3:]) == ["GET commit 5", "GET commit 6", "GET commit 7", "GET commit 8"]

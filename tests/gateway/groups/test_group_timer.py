"""A failure for one member must not stop the timer of all groups, or block responses to other members."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from consumer_groups import GROUP, RANGE, Gateway, stable
from gateways import serving, until
from kio.schema.errors import ErrorCode

from distlog.core.storage.storage import Storage
from distlog.gateway import gateway_server
from distlog.gateway.cluster import GatewayLease
from distlog.gateway.config import GroupSettings
from distlog.gateway.groups.classic_group import Join
from distlog.gateway.groups.committed_offsets import CommittedOffsets
from distlog.gateway.groups.consumer_group import SubscribedTopics
from distlog.gateway.groups.coordinator import GroupServices
from distlog.gateway.groups.offsets_topic import OffsetsTopic
from distlog.gateway.protocol.error_codes import CoordinatorError
from distlog.gateway.protocol.messages import RequestHead
from distlog.gateway.server.fairness import CpuShares, Quotas
from distlog.gateway.server.request import ClientSession, Request
from distlog.gateway.topics.topic_index import TopicSummary

JOIN = Join(rebalance_timeout_ms=60_000, session_timeout_ms=10_000, protocol_type="consumer", protocols=RANGE)


def no_topics() -> SubscribedTopics:
    return SubscribedTopics(lambda name: TopicSummary(name, "", 0), list)


def test_an_error_does_not_end_the_time_of_all_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, lease = OffsetsTopic(str(tmp_path), linger_ms=0), GatewayLease(Storage(str(tmp_path)), None, 9.0)
    settings, codes = GroupSettings(initial_rebalance_delay_ms=10), list[ErrorCode]()
    services = GroupServices(store, lease, settings, no_topics(), retention_ms=1000)

    def fails(reply: object) -> None:
        raise RuntimeError("a mistake of ours")

    services.join()
    services.start()
    try:
        services.members.join("first", JOIN, fails)
        until(lambda: "a mistake of ours" in caplog.text)
        services.members.join("second", JOIN, lambda reply: codes.append(reply.error))
        until(lambda: codes == [ErrorCode.none])
    finally:
        services.stop()


def test_an_answer_that_cannot_be_written_ends_its_connection_alone() -> None:
    ended: list[str] = []
    session = ClientSession(("", 0), ("", 0), "ANONYMOUS", None)
    client: Any = SimpleNamespace(fail=lambda _, reason: ended.append(reason))
    quotas, share = Quotas(lambda: 0.0), CpuShares(lambda: 0.0).share("ANONYMOUS", "")
    request = Request(RequestHead(12, 4, 1), None, session, share, quotas, client, body=object())
    request.respond({"throttle_time": 0, "error_code": "no code"})
    assert ended == ["the response cannot be written"]


def test_names_that_no_record_of_the_group_could_hold_are_refused() -> None:
    gateway = Gateway()
    # an id is the client's name, and 37 bytes more
    assert gateway.member("c" * 32_760).join().join_error is ErrorCode.invalid_request
    assert gateway.member("c", instance_id="i" * 32_760).join().join_error is ErrorCode.invalid_request
    long_name = (("p" * 40_000, b""),)
    assert gateway.member("c", protocols=long_name).join().join_error is ErrorCode.invalid_request
    assert gateway.member("c" * 1000).join().join_error is None


def test_a_group_begins_while_unused_positions_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, goes_on, codes = threading.Event(), threading.Event(), list[ErrorCode]()

    def expire(offsets: CommittedOffsets) -> None:
        started.set()
        assert goes_on.wait(300)

    monkeypatch.setattr(CommittedOffsets, "expire", expire)
    monkeypatch.setattr(gateway_server, "_EXPIRY_MS", 10)
    with serving(tmp_path, groups=GroupSettings(initial_rebalance_delay_ms=10)) as gateway:
        try:
            assert started.wait(300)
            gateway.broker.groups.members.join(GROUP, JOIN, lambda reply: codes.append(reply.error))
            until(lambda: codes == [ErrorCode.none])
        finally:
            goes_on.set()


def test_a_session_that_ends_while_its_group_is_loaded_ends_after_that() -> None:
    gateway = Gateway()
    member = gateway.member("a", session_timeout_ms=6000)
    stable(gateway, member)

    def is_loading(name: str) -> None:
        raise CoordinatorError(ErrorCode.coordinator_load_in_progress)

    always = gateway.groups.check
    gateway.groups.check = is_loading
    gateway.at_time(6000)
    gateway.groups.check = always
    gateway.at_time(1000)
    assert member.beat() is ErrorCode.unknown_member_id

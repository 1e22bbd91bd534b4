"""Fetch sessions (KIP-227), word for word: a client names its partitions once, and is told only of news."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
from gateways import FETCH, Wire, fetch_fields, opened
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode

import distlog
from distlog.gateway import fetch_sessions
from distlog.gateway.fetch_sessions import FetchSessionError, FetchSessions
from distlog.gateway.gateway_server import GatewayServer

VERSIONS = (12, 13, 17)
Asks = Callable[..., Any]


class Client:
    """A client's session, by names or by ids; `asks` sends a fetch, and tells the partitions in the answer."""

    def __init__(self, wire: Wire, gateway: GatewayServer, version: int = 12) -> None:
        self.wire, self.version, self.id, self.epoch = wire, version, 0, 0
        topic_id = uuid.UUID(opened(gateway).snapshot.topic_id)
        self.topic: Any = topic_id if version > 12 else "clicks"

    def asks(self, *wanted: tuple[int, int], forgets: tuple[int, ...] = (), **fields: Any) -> list[int]:
        """Fetch from these offsets of partitions."""
        told = self.send(*wanted, forgets=forgets, **fields)
        assert told.error_code is ErrorCode.none
        self.id, self.epoch = told.session_id, self.epoch + 1
        self.parts = {each.partition_index: each for topic in told.responses for each in topic.partitions}
        return [*self.parts]

    def send(self, *wanted: tuple[int, int], forgets: tuple[int, ...] = (), **fields: Any) -> Any:
        """The answer to a fetch in the session."""
        schema, place = (
            import_module(f"kio.schema.fetch.v{self.version}.request"),
            "topic" if self.version < 13 else "topic_id",
        )
        gone = (schema.ForgottenTopic(**{place: self.topic}, partitions=forgets),) if forgets else ()
        session = {"session_id": self.id, "session_epoch": self.epoch, "forgotten_topics_data": gone, **fields}
        places = [(self.topic, number, offset) for number, offset in wanted]
        return self.wire.ask(FETCH, self.version, **fetch_fields(self.version, places, **session))


def append(gateway: GatewayServer, number: int) -> None:
    opened(gateway).append([{"partition": number, "value": b"v"}])


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_in_a_session_has_only_the_partitions_with_news(gateway: GatewayServer, version: int) -> None:
    append(gateway, 0)
    with Wire(gateway) as wire:
        client = Client(wire, gateway, version)
        assert client.asks((0, 0), (1, 0)) == [0, 1]
        assert client.id > 0
        assert client.parts[0].records
        # it goes on from there, and names what has changed alone
        assert client.asks((0, 1)) == []
        append(gateway, 1)
        assert client.asks() == [1]
        assert client.parts[1].high_watermark == 1
        # a client that does not move on is given the records again
        assert client.asks() == [1]
        assert client.asks((1, 1)) == []
        append(gateway, 0)
        append(gateway, 1)
        assert client.asks(forgets=(1,)) == [0]
        assert client.asks((0, 2), (1, 2)) == [1]
        assert len(gateway.broker.fetch_sessions) == 1


def test_a_partition_with_an_error_is_told_each_time(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        client = Client(wire, gateway)
        client.asks((0, 0), (9, 0))
        for _ in range(2):
            assert client.asks() == [9]
            assert client.parts[9].error_code is ErrorCode.unknown_topic_or_partition
        # an offset that is behind the end, and then is not
        assert client.asks((0, 5), forgets=(9,)) == [0]
        assert client.parts[0].error_code is ErrorCode.offset_out_of_range
        assert client.asks((0, 0)) == [0]
        assert client.asks() == []


def test_a_session_ends_with_its_client_and_others_cannot_go_on_with_it(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        client = Client(wire, gateway)
        client.asks((0, 0))
        for epoch, code in ((5, ErrorCode.invalid_fetch_session_epoch), (0, ErrorCode.none)):
            assert client.send(session_epoch=epoch).error_code is code
        assert client.send().error_code is ErrorCode.fetch_session_id_not_found
        again = Client(wire, gateway)
        again.asks((0, 0))
        ids = Client(wire, gateway, 13)
        ids.id, ids.epoch = again.id, again.epoch
        assert ids.send().error_code is ErrorCode.fetch_session_topic_id_error
        told = again.send((1, 0), session_epoch=-1)
        assert (told.error_code, told.session_id) == (ErrorCode.none, 0)
        assert [each.partition_index for each in told.responses[0].partitions] == [1]
        assert len(gateway.broker.fetch_sessions) == 0


def test_partitions_with_records_let_others_have_their_turn(gateway: GatewayServer) -> None:
    for number in (0, 1):
        append(gateway, number)
    with Wire(gateway) as wire:
        client = Client(wire, gateway)
        client.asks((0, 0), (1, 0), max_bytes=1)
        turns = [client.asks(max_bytes=1) for _ in range(4)]
        assert turns == [[1], [0], [1], [0]]


def begin(sessions: FetchSessions, owner: str, count: int) -> int:
    places = [(("clicks", number), None) for number in range(count)]
    return sessions.begin(owner, 0, 0, places, (), has_ids=False).session_id


def test_sessions_of_one_client_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_MOST_PARTITIONS", 100)
    sessions = FetchSessions()
    assert begin(sessions, "a", 51) == 0
    assert begin(sessions, "a", 50) > 0
    assert begin(sessions, "a", 1) == 0
    other = begin(sessions, "b", 25)
    assert other > 0
    with pytest.raises(FetchSessionError, match="fetch_session_id_not_found"):
        sessions.begin("a", other, 1, (), (), has_ids=False)
    # one that grows beyond all bounds is ended
    places = [(("views", number), None) for number in range(30)]
    sessions.begin("b", other, 1, places, (), has_ids=False)
    with pytest.raises(FetchSessionError, match="fetch_session_id_not_found"):
        sessions.begin("b", other, 2, (), (), has_ids=False)
    assert begin(sessions, "b", 25) > 0


def test_a_session_that_was_not_used_for_long_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_SLOTS", 2)
    now = [0.0]
    sessions = FetchSessions(lambda: now[0])
    first, second = begin(sessions, "a", 1), begin(sessions, "a", 1)
    now[0] = 119.0
    assert begin(sessions, "b", 1) == 0
    sessions.begin("a", first, 1, (), (), has_ids=False)
    now[0] = 120.0
    assert begin(sessions, "b", 1) > 0
    sessions.begin("a", first, 2, (), (), has_ids=False)
    with pytest.raises(FetchSessionError):
        sessions.begin("a", second, 1, (), (), has_ids=False)


def test_a_topic_that_is_dropped_ends_as_an_error_in_the_session(gateway: GatewayServer) -> None:
    with Wire(gateway) as wire:
        client = Client(wire, gateway, 17)
        client.asks((0, 0))
        opened(gateway).drop()
        distlog.create(f"{gateway.root}/clicks")
        assert client.asks() == [0]
        assert client.parts[0].error_code is ErrorCode.unknown_topic_id


def test_a_session_takes_no_more_memory_than_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "_MOST_PARTITIONS", 100)
    sessions = FetchSessions()

    def places(count: int) -> dict[Any, Any]:
        return {("clicks", number): None for number in range(count)}

    long = sessions.begin("one", 0, 0, [(("x" * 250, 0), None)], (), has_ids=False)
    assert long.session is None
    grows = sessions.begin("one", 0, 0, places(1).items(), (), has_ids=False)
    named = sessions.begin("one", grows.session_id, 1, [(("x" * 250, 0), None)], (), has_ids=False)
    assert [place for place, _ in named.partitions] == [("clicks", 0)]
    sessions.begin("one", grows.session_id, 2, places(60).items(), (), has_ids=False)
    with pytest.raises(FetchSessionError):
        sessions.begin("one", grows.session_id, 3, (), (), has_ids=False)
    assert sessions.begin("two", 0, 0, places(40).items(), (), has_ids=False).session is not None

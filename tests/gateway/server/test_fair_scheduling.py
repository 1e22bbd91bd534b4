"""Fair scheduling of clients, with a clock that the test sets: the client with the least use is served first."""

from __future__ import annotations

import struct
import threading
from pathlib import Path

import pytest
from gateways import (
    INIT_PRODUCER_ID,
    METADATA,
    NO_WAIT,
    PRODUCE,
    Wire,
    counted,
    framed,
    limit_send_buffers,
    produce_fields,
    request,
    serving,
    until,
)
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.gateway.apis import APIS
from distlog.gateway.server.fairness import CpuShare, CpuShares, FairQueue, MemoryShare, RequestMemory, owner_name

ALL_TOPICS = {
    "topics": None,
    "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}


class Turns:
    """A queue with some handlers and its own clock; items are named by their clients."""

    def __init__(self, handlers: int) -> None:
        self.now_s = 100.0
        self.shares = CpuShares(lambda: self.now_s)
        self.queue = FairQueue[str](self.shares, handlers)

    def put(self, owner: str, count: int = 1, client_id: str = "") -> CpuShare:
        share = self.shares.share(owner, client_id)
        for _ in range(count):
            self.queue.put(share, owner + client_id)
        return share

    def run(self, used_s: float) -> str | None:
        name = self.queue.next()
        if name is not None:
            owner, _, client_id = name.partition("/")
            self.now_s += used_s
            self.queue.end(self.shares.share(owner, f"/{client_id}" if client_id else ""), used_s)
        return name


def test_one_request_overtakes_two_hundred_of_another_client() -> None:
    turns = Turns(8)
    turns.put("strangers", 200)
    assert [turns.run(0.03) for _ in range(10)] == ["strangers"] * 10
    turns.put("honest")
    assert turns.run(0.001) == "honest"


def test_two_clients_that_always_wait_have_the_same_time_whatever_a_request_of_each_costs() -> None:
    turns, used_s = Turns(8), {"small": 0.0, "large": 0.0}
    cost_s = {"small": 0.001, "large": 0.02}
    turns.put("small", 3)
    turns.put("large", 3)
    for _ in range(2000):
        owner = turns.queue.next()
        if owner is None:
            turns.now_s += 0.001
            continue
        turns.now_s += cost_s[owner]
        turns.queue.end(turns.shares.share(owner, ""), cost_s[owner])
        used_s[owner] += cost_s[owner]
        turns.put(owner)
    assert used_s["small"] == pytest.approx(used_s["large"], rel=0.1)


def test_client_ids_of_one_address_are_served_in_turn_as_addresses_are() -> None:
    turns = Turns(8)
    turns.put("here", 200, "/strangers")
    assert [turns.run(0.03) for _ in range(5)] == ["here/strangers"] * 5
    turns.put("here", 1, "/honest")
    assert turns.run(0.001) == "here/honest"


def test_a_client_with_many_requests_has_two_fifths_of_the_time_while_another_is_active() -> None:
    turns, used_s, started_s = Turns(8), 0.0, 0.0
    turns.put("strangers", 200)
    honest = turns.shares.share("honest", "")
    for number in range(10_000):
        if number == 5000:
            # its earlier use, while no other client was active, is forgotten by then
            used_s, started_s = 0.0, turns.now_s
        # it sends the next request when it has the answer, so it seldom waits
        honest.add_use(0.0001, turns.now_s)
        if turns.run(0.003) is None:
            turns.now_s += 0.001
        else:
            turns.put("strangers")
            used_s += 0.003
    assert used_s / (turns.now_s - started_s) == pytest.approx(0.4, abs=0.05)
    turns.now_s += 1
    assert [turns.run(0.003) for _ in range(50)] == ["strangers"] * 50


def test_a_handler_is_left_to_a_client_that_comes_later() -> None:
    turns = Turns(4)
    turns.put("slow", 10)
    assert [turns.queue.next() for _ in range(3)] == ["slow", "slow", None]
    turns.put("honest")
    assert turns.queue.next() == "honest"


def test_a_heavy_client_has_one_handler_while_another_is_active() -> None:
    turns = Turns(8)
    slow = turns.put("slow", 10)
    turns.put("honest")
    slow.add_use(1, turns.now_s)
    assert [turns.queue.next() for _ in range(3)] == ["honest", None, None]
    turns.queue.end(turns.shares.share("honest", ""), 0.001)
    turns.now_s += 1
    # its use has faded to less than two fifths of the time
    turns.shares.share("honest", "").add_use(0, turns.now_s)
    assert [turns.queue.next() for _ in range(2)] == ["slow", None]


def test_idle_clients_are_forgotten() -> None:
    turns = Turns(2)
    for number in range(5000):
        turns.put("here", 1, f"/{number}")
        turns.run(0.001)
        turns.now_s += 1
    assert len(turns.shares.share("here", "").parent.children) < 1100  # type: ignore[union-attr]


def test_a_client_is_known_by_its_user_or_by_its_address() -> None:
    assert owner_name("alice", "10.0.0.1") == "user alice"
    assert owner_name(None, "10.0.0.1") == "10.0.0.1"
    # all addresses of one customer, and an address of IPv4 as IPv6 writes it
    assert owner_name(None, "2001:db8::1") == owner_name(None, "2001:db8::ffff:2")
    assert owner_name(None, "2001:db8::1") != owner_name(None, "2001:db8:0:1::1")
    assert owner_name(None, "::ffff:10.0.0.1") == "10.0.0.1"
    assert owner_name(None, "") == ""


def test_an_honest_client_is_answered_while_all_handlers_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    distlog.create(str(tmp_path / "clicks"))
    goes_on = threading.Event()

    def stuck(*_: object) -> dict[str, int]:
        goes_on.wait(60)
        return {"throttle_time": 0}

    monkeypatch.setitem(APIS, METADATA, APIS[METADATA]._replace(handle=stuck))
    with serving(tmp_path, num_io_threads=3) as gateway, Wire(gateway) as honest:
        strangers = [Wire(gateway) for _ in range(20)]
        for wire in strangers:
            wire.send(METADATA, 9, **ALL_TOPICS)
        until(lambda: counted(gateway, "request_queue_size") == 19)
        for number in range(5):
            sent = request(PRODUCE, 9, number, **produce_fields(9, [("clicks", 0, batch([record(0)]))]))
            honest.socket.sendall(framed(sent.replace(b"a-test", b"honest")))
            ((responses,),) = [
                response.partition_responses for response in honest.answer(PRODUCE, 9, number).responses
            ]
            assert responses.base_offset == number
        goes_on.set()
        for wire in strangers:
            wire.socket.close()


def test_one_user_has_at_most_three_quarters_of_the_memory() -> None:
    memory, went_on = RequestMemory(8 << 20), list[str]()
    first, second, honest = (MemoryShare(memory, owner) for owner in ("strangers", "strangers", "honest"))
    assert first.reserve(5 << 20, lambda: None)
    assert not second.reserve(2 << 20, lambda: went_on.append("strangers"))
    assert honest.reserve(2 << 20, lambda: None)
    honest.release(2 << 20)
    assert went_on == []
    first.release(5 << 20)
    assert went_on == ["strangers"]
    second.release(2 << 20)
    assert memory.used == 0


def test_unread_responses_block_only_their_client() -> None:
    memory, went_on = RequestMemory(8 << 20), list[str]()
    slow, same, honest = (MemoryShare(memory, owner) for owner in ("strangers", "strangers", "honest"))
    slow.charge(20 << 20)
    assert not same.reserve(100, lambda: went_on.append("strangers"))
    assert honest.reserve(100, lambda: None)
    slow.release(20 << 20)
    assert went_on == ["strangers"]


@pytest.mark.parametrize("topics", [1500, 35_000])
def test_the_bytes_of_a_response_are_counted_until_they_are_taken(tmp_path: Path, topics: int) -> None:
    names = [f"{number:0100d}" for number in range(topics)]
    with serving(tmp_path) as gateway:
        limit_send_buffers(gateway)
        slow = Wire(gateway, receive_bytes=4096)
        slow.socket.sendall(framed(metadata_of(names)))
        until(lambda: 100 * topics < counted(gateway, "request_memory_bytes") < 150 * topics)
        assert len(slow.answer(METADATA, 1, 1).topics) == len(names)
        until(lambda: counted(gateway, "request_memory_bytes") == 0)
        slow.socket.close()


def metadata_of(names: list[str]) -> bytes:
    texts = b"".join(struct.pack(">h", len(name)) + name.encode() for name in names)
    return struct.pack(">hhihi", METADATA, 1, 1, -1, len(names)) + texts


HEARTBEAT = 12


def test_heartbeats_do_not_wait_for_slow_storage_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        waits.set()
        goes_on.wait(120)

    monkeypatch.setitem(APIS, INIT_PRODUCER_ID, APIS[INIT_PRODUCER_ID]._replace(handle=slow))
    with serving(tmp_path, num_io_threads=1) as gateway, Wire(gateway) as busy, Wire(gateway) as member:
        busy.send(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=NO_WAIT)
        assert waits.wait(120)
        member.socket.settimeout(60)
        try:
            response = member.ask(
                HEARTBEAT, 4, group_id="billing", generation_id=1, member_id="a", group_instance_id=None
            )
            assert response.error_code is ErrorCode.unknown_member_id
        finally:
            goes_on.set()
            busy.socket.close()

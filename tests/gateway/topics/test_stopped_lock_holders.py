"""A process is stopped (SIGSTOP) while it holds a lock of a partition: only requests for that partition wait."""

from __future__ import annotations

import datetime
import fcntl
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from forked_programs import Program
from gateways import (
    API_VERSIONS,
    METADATA,
    PRODUCE,
    Wire,
    counted,
    fetching,
    open_topic,
    produce_fields,
    producing,
    removed,
    serving,
    until,
)
from kio.schema.errors import ErrorCode
from open_files import open_below
from raw_batches import batch, record
from transacting import values_seen
from transactional_clients import RawProducer, position

import distlog
from distlog.core.log import partition_log
from distlog.core.log.partition_log import OpenLogs, PartitionLog
from distlog.core.read.kafka_offsets import offsets_partition
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.offsets_topic import PARTITIONS

pytestmark = pytest.mark.long

HOLDING = """
import os, sys, time
from distlog.core.storage.locks_and_pages import FileLock

lock = FileLock(sys.argv[1])
with lock.held():
    print(flush=True)
    sys.stdin.read()
"""
DATA = batch([record(value=b"v")])
VERSION = 9
HEARTBEAT, SYNC_GROUP = 12, 14
FINE = ErrorCode.none


@contextmanager
def stopped_holder(folder: Path, name: str = ".lock") -> Iterator[Program]:
    """A process that is stopped, and holds a lock of the partition in the folder; then it continues, and ends."""
    with Program(HOLDING, folder / name, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.communicate()


@contextmanager
def waiting_producers(gateway: GatewayServer, count: int, timeout_s: float = 30) -> Iterator[list[tuple[Wire, int]]]:
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(gateway)) for _ in range(count)]
        fields = produce_fields(VERSION, [("clicks", 0, DATA)]) | {"timeout": datetime.timedelta(seconds=timeout_s)}
        correlation_ids = [(wire, wire.send(PRODUCE, VERSION, **fields)) for wire in wires]
        until(lambda: len(gateway.broker.appends) == count)
        yield correlation_ids


def answers(requests: list[tuple[Wire, int]]) -> list[tuple[ErrorCode, int]]:
    bodies = [wire.answer(PRODUCE, VERSION, number) for wire, number in requests]
    responses = [body.responses[0].partition_responses[0] for body in bodies]
    return [(response.error_code, response.base_offset) for response in responses]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[GatewayServer]:
    distlog.create(str(tmp_path / "clicks"), partitions=2)
    with serving(tmp_path, num_io_threads=1) as gateway, Wire(gateway) as wire:
        assert [producing(wire, DATA, number).base_offset for number in range(2)] == [0, 0]
        yield gateway


def test_all_other_requests_are_answered_while_appends_wait_for_a_stopped_process(
    served: GatewayServer, tmp_path: Path
) -> None:
    with ExitStack() as stack, Wire(served) as other:
        other.socket.settimeout(45)
        with stopped_holder(tmp_path / "clicks" / "clicks-0"):
            requested = stack.enter_context(waiting_producers(served, 5, timeout_s=120))
            assert other.ask(API_VERSIONS, 0).error_code is ErrorCode.none
            topics = other.ask(METADATA, 4, topics=None, allow_auto_topic_creation=False).topics
            assert [len(topic.partitions) for topic in topics if topic.name == "clicks"] == [2]
            assert [fetching(other, 0, number).records == DATA for number in range(2)] == [True, True]
            assert producing(other, DATA, 1).base_offset == 1
            assert len(served.broker.appends) == 5
        assert sorted(answers(requested)) == [(ErrorCode.none, offset) for offset in range(1, 6)]
    assert open_topic(served).end_offsets() == {0: 6, 1: 2}


def test_a_timeout_is_answered_and_the_holder_of_the_lock_is_logged(
    served: GatewayServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with stopped_holder(tmp_path / "clicks" / "clicks-0") as holder, waiting_producers(served, 1, 1.5) as requested:
        ((wire, number),) = requested
        (response,) = wire.answer(PRODUCE, VERSION, number).responses[0].partition_responses
        assert response.error_code is ErrorCode.kafka_storage_error
        assert f"process {holder.pid} has held the lock" in caplog.text
        assert "it is stopped" in caplog.text
    assert open_topic(served).end_offsets() == {0: 1, 1: 1}


def test_requests_of_a_disconnected_client_are_dropped_except_acks_0(served: GatewayServer, tmp_path: Path) -> None:
    with stopped_holder(tmp_path / "clicks" / "clicks-0"):
        with waiting_producers(served, 2), Wire(served) as silent:
            fields = produce_fields(VERSION, [("clicks", 0, DATA)], 0) | {"timeout": datetime.timedelta(seconds=30)}
            silent.send(PRODUCE, VERSION, **fields)
            until(lambda: len(served.broker.appends) == 3)
        until(lambda: len(served.broker.appends) == 1)
    until(lambda: open_topic(served).end_offsets()[0] == 2)


def test_a_flush_that_waits_for_a_stopped_process_takes_no_handler(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), partitions=2, config={"flush.messages": 1})
    with serving(tmp_path, num_io_threads=1) as served, ExitStack() as stack, Wire(served) as other:
        assert producing(other, DATA, 0).base_offset == 0
        other.socket.settimeout(45)
        with stopped_holder(tmp_path / "clicks" / "clicks-0", ".flush"):
            requested = stack.enter_context(waiting_producers(served, 3, timeout_s=120))
            assert producing(other, DATA, 1).base_offset == 0
            assert len(fetching(other, 0).records) >= len(DATA)
        assert sorted(answers(requested)) == [(ErrorCode.none, offset) for offset in (1, 2, 3)]
    assert distlog.open(str(tmp_path / "clicks")).end_offsets() == {0: 4, 1: 1}


def test_the_ends_of_transactions_that_wait_for_a_stopped_process_hold_up_no_other_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    distlog.create(str(tmp_path / "clicks"), partitions=2)
    with serving(tmp_path, num_io_threads=1) as served, ExitStack() as stack, Wire(served) as other:
        producers = [RawProducer(stack.enter_context(Wire(served)), f"waits-{number}") for number in range(2)]
        for producer in producers:
            assert (producer.init(), producer.add(("clicks", 0)), producer.send(b"v")) == (FINE, [FINE], FINE)
        late = RawProducer(other, "late")
        with stopped_holder(tmp_path / "clicks" / "clicks-0"):
            correlation_ids = [(producer, producer.ask_end()) for producer in producers]
            other.socket.settimeout(20)
            assert (late.init(), late.add(("clicks", 1))) == (FINE, [FINE])
            assert (late.send(b"v", 1), late.end()) == (FINE, FINE)
            assert position(other) == -1
            assert [producer.end_of(number) for producer, number in correlation_ids] == [FINE] * 2
            assert values_seen(open_topic(served)) == {0: [], 1: [b"v"]}
        until(lambda: values_seen(open_topic(served))[0] == [b"v"] * 2)
    assert "is decided, but not visible yet" in caplog.text


def test_states_of_transactions_that_wait_for_a_stopped_process_hold_up_no_other_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlog.gateway.topics.partition.OWN_WAIT_S", 0.3)
    distlog.create(str(tmp_path / "clicks"))
    with serving(tmp_path, num_io_threads=1) as served, ExitStack() as stack, Wire(served) as other:
        late, ids = RawProducer(other, "late"), [f"waits-{number}" for number in range(1000)]
        number = offsets_partition(ids[0], PARTITIONS)
        assert offsets_partition("late", PARTITIONS) != number
        ids = [id_ for id_ in ids if offsets_partition(id_, PARTITIONS) == number][:3]
        producers = [RawProducer(stack.enter_context(Wire(served)), id_) for id_ in ids]
        assert [producer.init() for producer in producers] == [FINE] * 3
        with stopped_holder(tmp_path / "__transaction_state" / f"__transaction_state-{number}"):
            correlation_ids = [(producer, producer.ask_init()) for producer in producers]
            other.socket.settimeout(20)
            assert (late.init(), late.add(("clicks", 0)), late.send(b"v"), late.end()) == (FINE, [FINE], FINE, FINE)
            codes = [producer.wire.answer(22, 4, number).error_code for producer, number in correlation_ids]
        assert codes == [ErrorCode.coordinator_not_available] * 3
        assert [producer.init() for producer in producers] == [FINE] * 3
    assert values_seen(distlog.open(str(tmp_path / "clicks"))) == {0: [b"v"]}


def changes_of(topic: str) -> dict[str, tuple[int, int, dict[str, Any]]]:
    records, configs, partitions = (
        import_module(f"kio.schema.{name}.request")
        for name in ("delete_records.v1", "incremental_alter_configs.v0", "create_partitions.v1")
    )
    wait = datetime.timedelta(seconds=60)
    first = records.DeleteRecordsPartition(partition_index=0, offset=1)
    policy = configs.AlterableConfig(name="cleanup.policy", config_operation=0, value="compact")
    resource = configs.AlterConfigsResource(resource_type=2, resource_name=topic, configs=(policy,))
    more = partitions.CreatePartitionsTopic(name=topic, count=3, assignments=None)
    return {
        "DeleteRecords": (
            21,
            1,
            {"topics": (records.DeleteRecordsTopic(name=topic, partitions=(first,)),), "timeout": wait},
        ),
        "DeleteTopics": (20, 4, {"topic_names": (topic,), "timeout": wait}),
        "CreatePartitions": (37, 1, {"topics": (more,), "timeout": wait, "validate_only": False}),
        "IncrementalAlterConfigs": (44, 0, {"resources": (resource,), "validate_only": False}),
    }


def test_partitions_are_added_to_a_topic_with_a_stalled_one(served: GatewayServer, tmp_path: Path) -> None:
    key, version, fields = changes_of("clicks")["CreatePartitions"]
    with Wire(served) as wire, stopped_holder(tmp_path / "clicks" / "clicks-0"):
        assert [result.error_code for result in wire.ask(key, version, **fields).results] == [ErrorCode.none]
        assert producing(wire, DATA, 2).base_offset == 0


@pytest.mark.parametrize("api", ["DeleteRecords", "DeleteTopics", "IncrementalAlterConfigs"])
def test_changes_of_a_stalled_topic_delay_no_other_request(served: GatewayServer, tmp_path: Path, api: str) -> None:
    distlog.create(str(tmp_path / "other"))
    key, version, fields = changes_of("clicks")[api]
    with ExitStack() as stack, Wire(served) as other:
        other.socket.settimeout(45)
        with stopped_holder(tmp_path / "clicks" / "clicks-0"):
            for _ in range(3):
                stack.enter_context(Wire(served)).send(key, version, **fields)
            # one client has half of the threads: two requests wait for the lock, and the third for a thread
            until(lambda: counted(served, "request_queue_size") == 1)
            topics = other.ask(METADATA, 4, topics=None, allow_auto_topic_creation=False).topics
            assert "other" in {topic.name for topic in topics}
            assert fetching(other, 0, topic="other").records is not None
            assert producing(other, DATA, topic="other").base_offset == 0
            if api != "DeleteTopics":
                assert producing(other, DATA, 1).base_offset == 1


def ask_commit(wire: Wire, group: str, offset: int = 1) -> int:
    """Ask for a position of a group without members to be kept; returns the number of the request."""
    schema = import_module("kio.schema.offset_commit.v8.request")
    position = schema.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=""
    )
    topics = (schema.OffsetCommitRequestTopic(name="clicks", partitions=(position,)),)
    return wire.send(8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=topics)


def code_of_commit(wire: Wire, number: int) -> ErrorCode:
    code: ErrorCode = wire.answer(8, 8, number).topics[0].partitions[0].error_code
    return code


@pytest.mark.parametrize("lock", [".lock", ".flush"])
def test_positions_that_wait_for_a_stopped_process_hold_up_no_group_of_another_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    monkeypatch.setattr("distlog.gateway.groups.offsets_topic._LOCK_WAIT_S", 0.5)
    distlog.create(str(tmp_path / "clicks"))
    number = offsets_partition("waits", PARTITIONS)
    assert offsets_partition("early", PARTITIONS) != number
    with serving(tmp_path, num_io_threads=1) as served, Wire(served) as waiting, Wire(served) as other:
        until(lambda: code_of_commit(waiting, ask_commit(waiting, "waits")) is FINE)
        assert code_of_commit(other, ask_commit(other, "early")) is FINE
        with stopped_holder(tmp_path / "__consumer_offsets" / f"__consumer_offsets-{number}", lock):

            def other_group_is_first() -> bool:
                requested = ask_commit(waiting, "waits", 2)
                for offset in range(20):
                    assert code_of_commit(other, ask_commit(other, "early", offset)) is FINE
                has_waited = bool(select.select([waiting.socket], [], [], 0)[0])
                assert code_of_commit(waiting, requested) is ErrorCode.coordinator_not_available
                return not has_waited

            # after one that failed, another writer continues; a busy machine may take longer than the lock's timeout
            for _ in range(2):
                until(other_group_is_first)
        assert code_of_commit(waiting, ask_commit(waiting, "waits", 3)) is FINE
        assert position(other, group="waits") == 3
        assert position(other, group="early") == 19


def test_a_new_gateway_coordinates_all_groups_without_a_stalled_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("distlog.gateway.cluster._LOCK_WAIT_S", 0.2)
    distlog.create(str(tmp_path / "clicks"))
    number, loading = offsets_partition("waits", PARTITIONS), ErrorCode.coordinator_load_in_progress
    with serving(tmp_path) as served, Wire(served) as wire:
        until(lambda: {code_of_commit(wire, ask_commit(wire, group)) for group in ("waits", "early")} == {FINE})
    folder = tmp_path / "__consumer_offsets" / f"__consumer_offsets-{number}"
    with stopped_holder(folder), serving(tmp_path) as served, Wire(served) as wire:
        until(lambda: code_of_commit(wire, ask_commit(wire, "early", 2)) is FINE)
        assert code_of_commit(wire, ask_commit(wire, "waits", 2)) is loading
        assert (position(wire, group="early"), position(wire, group="waits")) == (2, loading)
        response = removed(wire, "waits")
        assert (response.error_code, response.members) == (loading, ())
        # Java's consumers fail if SyncGroup reports loading; a broker has no error for heartbeats
        ids = {"group_id": "waits", "generation_id": 1, "member_id": "a", "group_instance_id": None}
        assert wire.ask(HEARTBEAT, 4, **ids).error_code is FINE
        response = wire.ask(SYNC_GROUP, 5, **ids, protocol_type=None, protocol_name=None, assignments=())
        assert (response.error_code, response.assignment) == (ErrorCode.rebalance_in_progress, b"")
    with serving(tmp_path) as served, Wire(served) as wire:
        until(lambda: position(wire, group="waits") == 1)


def test_an_orphaned_lock_of_the_gateway_is_released(
    served: GatewayServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    unknown = os.open(tmp_path / "clicks" / "clicks-0" / ".lock", os.O_RDWR)
    try:
        fcntl.flock(unknown, fcntl.LOCK_EX)
        with Wire(served) as wire:
            fields = produce_fields(VERSION, [("clicks", 0, DATA)]) | {"timeout": datetime.timedelta(seconds=30)}
            assert answers([(wire, wire.send(PRODUCE, VERSION, **fields))]) == [(ErrorCode.none, 1)]
    finally:
        os.close(unknown)
    assert "that none of its threads uses" in caplog.text


def test_a_gateway_ends_while_appends_wait(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"))
    (tmp_path / "clicks" / "clicks-0").mkdir(exist_ok=True)
    with stopped_holder(tmp_path / "clicks" / "clicks-0"), serving(tmp_path) as gateway:
        started_s = time.monotonic()
        with waiting_producers(gateway, 2, timeout_s=120) as requested:
            gateway.stop(timeout_s=1)
            assert {code for code, _ in answers(requested)} == {ErrorCode.kafka_storage_error}
        assert time.monotonic() - started_s < 60


def test_a_log_whose_flush_lock_is_not_free_is_closed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_log, "MAX_OPEN_LOGS", 1)
    topic, folder = distlog.create(str(tmp_path / "clicks"), partitions=2), tmp_path / "clicks" / "clicks-0"
    logs = OpenLogs[int](lambda number: PartitionLog(topic.handle, number, topic.current))
    assert _has(logs, 0)
    with stopped_holder(folder, ".flush"):
        assert _has(logs, 1)
        assert open_below(folder)
    logs.flush_due()
    assert not open_below(folder)


def _has(logs: OpenLogs[int], number: int) -> bool:
    with logs.use(number) as log:
        return log.append_batches(DATA).appended.first_offset == 0

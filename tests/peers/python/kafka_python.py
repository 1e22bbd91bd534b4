"""The stories of kafka-python: kafka_python.py ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import (
    ACL,
    ACLFilter,
    ACLOperation,
    ACLPermissionType,
    ConfigResource,
    ConfigResourceType,
    OffsetSpec,
    ResourcePattern,
    ResourceType,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError, OffsetOutOfRangeError, TopicAlreadyExistsError
from kafka.structs import OffsetAndMetadata

from peers.python.story import PATIENCE_SECONDS, Target, run, same, until

_FIRST_MS = 1_700_000_000_000


@contextmanager
def admin(address: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=address)
    try:
        yield client
    finally:
        client.close()


def created(target: Target, partitions: int = 1, name: str = "", **configs: str) -> str:
    topic = name or target.topic
    with admin(target.address) as a:
        a.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    return topic


def producer(target: Target, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=target.address, **settings)


def consumer(target: Target, **settings: Any) -> KafkaConsumer:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return KafkaConsumer(bootstrap_servers=target.address, **{**defaults, **settings})


def written(target: Target, topic: str, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; returns the reported partitions and offsets."""
    sender, sent = producer(target, **settings), []
    for index in range(count):
        number = str(index).encode()
        headers = [("n", number)]
        future = sender.send(topic, number, b"k" + number, headers, index % partitions, _FIRST_MS + index)
        sent.append(future)
    sender.flush(PATIENCE_SECONDS)
    reports = [index.get(PATIENCE_SECONDS) for index in sent]
    sender.close()
    return [(index.partition, index.offset) for index in reports]


def polled(reader: KafkaConsumer, timeout_ms: int = 200) -> list[Any]:
    return [record for records in reader.poll(timeout_ms).values() for record in records]


def read(reader: KafkaConsumer, count: int) -> list[Any]:
    """Poll until `count` records have come, and no more come."""
    records: list[Any] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(records) < count:
        assert time.monotonic() < end, f"{len(records)} of {count} records"
        records += polled(reader)
    records += polled(reader)
    same("records", len(records), count)
    return records


def read_all(target: Target, topic: str, partitions: int, count: int, **settings: Any) -> list[Any]:
    reader = consumer(target, **settings)
    reader.assign([TopicPartition(topic, number) for number in range(partitions)])
    records = read(reader, count)
    reader.close()
    return records


# --- the stories


def produce_consume(settings: dict[str, Any], target: Target) -> None:
    topic = created(target, 3)
    positions = written(target, topic, 3000, 3, **settings)
    same("the offsets", sorted(positions), [(part, record) for part in range(3) for record in range(1000)])
    for record in read_all(target, topic, 3, 3000):
        number = str(record.offset * 3 + record.partition).encode()
        same("key and value", (record.key, record.value), (b"k" + number, number))
        same("headers", list(record.headers), [("n", number)])
        same("the time", record.timestamp, _FIRST_MS + int(number))


def small_records(target: Target) -> None:
    topic = created(target, 4)
    written(target, topic, 10_000, 4, batch_size=2000)
    for record in read_all(target, topic, 4, 10_000):
        same("the value", record.value, str(record.offset * 4 + record.partition).encode())


def group(assignor: type, target: Target) -> None:
    topic, settings = created(target, 4), {"group_id": target.topic, "partition_assignment_strategy": [assignor]}
    written(target, topic, 400, 4)
    first = consumer(target, heartbeat_interval_ms=300, **settings)
    first.subscribe([topic])
    read(first, 400)
    first.commit()
    second = consumer(target, heartbeat_interval_ms=300, **settings)
    second.subscribe([topic])

    def shared(*members: KafkaConsumer) -> list[int]:
        for member in members:
            polled(member, 100)
        return [len(member.assignment()) for member in members]

    until("two partitions each", lambda: shared(first, second) == [2, 2])
    same("positions", [first.committed(TopicPartition(topic, member)) for member in range(4)], [100] * 4)
    written(target, topic, 40, 4)
    read(second, 20)
    second.commit()
    second.close()
    until("all partitions again", lambda: shared(first) == [4])
    first.close()


def transactions(target: Target) -> None:
    topic = created(target, 2)
    sender = producer(target, transactional_id=target.topic)
    sender.init_transactions()
    for number in range(10):
        sender.begin_transaction()
        for part in range(2):
            sender.send(topic, str(number).encode(), partition=part)
        sender.flush(PATIENCE_SECONDS)
        sender.send_offsets_to_transaction(
            {TopicPartition(topic, 0): OffsetAndMetadata(number, "", -1)}, target.topic
        )
        if number % 2:
            sender.abort_transaction()
        else:
            sender.commit_transaction()
    sender.close()
    records = read_all(target, topic, 2, 10, isolation_level="read_committed")
    same("values", sorted(number.value for number in records), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    read_all(target, topic, 2, 20)
    reader = consumer(target, group_id=target.topic)
    same("the position", reader.committed(TopicPartition(topic, 0)), 8)
    reader.close()


def fenced(target: Target) -> None:
    topic = created(target)
    first, second = (producer(target, transactional_id=target.topic) for _ in range(2))
    first.init_transactions()
    first.begin_transaction()
    first.send(topic, b"of the first").get(PATIENCE_SECONDS)
    second.init_transactions()
    second.begin_transaction()
    second.send(topic, b"of the second")
    second.commit_transaction()
    try:
        first.commit_transaction()
    except KafkaError:
        pass
    else:
        raise AssertionError("the first producer was not fenced")
    (record,) = read_all(target, topic, 1, 1, isolation_level="read_committed")
    same("the value", record.value, b"of the second")


def offsets(target: Target) -> None:
    topic = created(target)
    written(target, topic, 100, 1)
    part, reader = TopicPartition(topic, 0), consumer(target, auto_offset_reset="none")
    times = reader.offsets_for_times({part: _FIRST_MS + 7})
    same("the offset of a time", (times[part].offset, times[part].timestamp), (7, _FIRST_MS + 7))
    same("after all", reader.offsets_for_times({part: _FIRST_MS + 100})[part], None)
    same("the ends", (reader.beginning_offsets([part])[part], reader.end_offsets([part])[part]), (0, 100))
    reader.assign([part])
    reader.seek(part, 1000)
    try:
        read(reader, 1)
    except OffsetOutOfRangeError:
        pass
    else:
        raise AssertionError("an offset that is out of range was read")
    reader.close()
    with admin(target.address) as a:
        for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 100), (OffsetSpec.MAX_TIMESTAMP, 99)):
            same(f"the offset of {spec}", a.list_partition_offsets({part: spec})[part].offset, offset)


def topics(target: Target) -> None:
    topic = created(target, 2, **{"cleanup.policy": "compact"})
    try:
        created(target, 2)
    except TopicAlreadyExistsError:
        pass
    else:
        raise AssertionError("it was created twice")
    with admin(target.address) as a:
        a.create_partitions({topic: 4})
        same("partitions", len(a.describe_topics([topic])[0]["partitions"]), 4)

        def description(name: str) -> str:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            return str(a.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"])

        same("the policy", description("cleanup.policy"), "compact")
        a.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})])
        same("the age", description("retention.ms"), "1000")
        assert topic in a.list_topics()
        a.elect_leaders(0, {topic: [0]})
        assert a.describe_cluster()["cluster_id"]
        a.delete_topics([topic])
        until("it was deleted", lambda: topic not in a.list_topics())


def groups(target: Target) -> None:
    topic, part = created(target), TopicPartition(target.topic, 0)
    written(target, topic, 10, 1)
    reader = consumer(target, group_id=topic)
    reader.subscribe([topic])
    read(reader, 10)
    reader.commit()
    with admin(target.address) as a:
        same("the state", a.describe_groups([topic])[topic]["group_state"].lower(), "stable")
        assert topic in [listing["group_id"] for listing in a.list_groups()]
        reader.close()
        a.alter_group_offsets(topic, {part: OffsetAndMetadata(4, "", -1)})
        same("the position", a.list_group_offsets(topic)[topic][part].offset, 4)
        a.reset_group_offsets(topic, {part: OffsetSpec.LATEST})
        same("the position", a.list_group_offsets(topic)[topic][part].offset, 10)
        a.delete_group_offsets(topic, [part])
        a.delete_groups([topic])
        assert topic not in [listing["group_id"] for listing in a.list_groups()]


def delete_records(target: Target) -> None:
    topic = created(target)
    written(target, topic, 10, 1)
    with admin(target.address) as a:
        a.delete_records({TopicPartition(topic, 0): 4})
    same("the offsets", [record.offset for record in read_all(target, topic, 1, 6)], list(range(4, 10)))


def acls(target: Target) -> None:
    of = ResourcePattern(ResourceType.TOPIC, target.topic)
    with admin(target.secured) as a:
        a.create_acls([ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, of)])
        acl_filter = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, of)
        same("entries", len(a.describe_acls(acl_filter)[0]), 1)
        a.delete_acls([acl_filter])
        same("entries", len(a.describe_acls(acl_filter)[0]), 0)


def users(target: Target) -> None:
    user, kind = target.topic, ScramMechanism.SCRAM_SHA_256
    with admin(target.secured) as a:
        a.alter_user_scram_credentials([UserScramCredentialUpsertion(user, kind, b"a-password", iterations=4096)])
        description = a.describe_user_scram_credentials([user])[user]
        same("iterations", [credential["iterations"] for credential in description["credential_infos"]], [4096])
        a.alter_user_scram_credentials([UserScramCredentialDeletion(user, kind)])


def transactions_of_all(target: Target) -> None:
    topic = created(target)
    sender = producer(target, transactional_id=target.topic)
    sender.init_transactions()
    sender.begin_transaction()
    sender.send(topic, b"one").get(PATIENCE_SECONDS)
    sender.commit_transaction()
    with admin(target.address) as a:
        shown = str(a.list_transactions())
        assert target.topic in shown, shown
        shown = str(a.describe_transactions([target.topic]))
        assert "Complete" in shown or "COMPLETE" in shown, shown
        a.describe_producers([TopicPartition(topic, 0)])
        a.describe_log_dirs()
    sender.close()


STORIES: dict[str, Callable[[Target], None]] = {
    "produce-consume": partial(produce_consume, {}),
    **{
        f"codec-{codec}": partial(produce_consume, {"compression_type": codec})
        for codec in ("gzip", "snappy", "lz4", "zstd")
    },
    "not-idempotent": partial(produce_consume, {"enable_idempotence": False, "acks": 1}),
    "small-records": small_records,
    "group-range": partial(group, RangePartitionAssignor),
    "group-cooperative": partial(group, CooperativeStickyAssignor),
    "transactions": transactions,
    "fenced": fenced,
    "offsets": offsets,
    "topics": topics,
    "groups": groups,
    "delete-records": delete_records,
    "describe-transactions": transactions_of_all,
    "acls": acls,
    "users": users,
}

if __name__ == "__main__":
    run(STORIES)

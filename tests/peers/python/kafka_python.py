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

from peers.python.story import PATIENCE_SECONDS, Place, run, same, until

_FIRST_MS = 1_700_000_000_000


@contextmanager
def admin(at: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=at)
    try:
        yield client
    finally:
        client.close()


def created(place: Place, partitions: int = 1, name: str = "", **configs: str) -> str:
    topic = name or place.topic
    with admin(place.address) as a:
        a.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})
    return topic


def producer(place: Place, **settings: Any) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=place.address, **settings)


def consumer(place: Place, **settings: Any) -> KafkaConsumer:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return KafkaConsumer(bootstrap_servers=place.address, **{**defaults, **settings})


def written(place: Place, topic: str, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; partitions and offsets as they were told."""
    sender, sent = producer(place, **settings), []
    for each in range(count):
        number = str(each).encode()
        headers = [("n", number)]
        told = sender.send(topic, number, b"k" + number, headers, each % partitions, _FIRST_MS + each)
        sent.append(told)
    sender.flush(PATIENCE_SECONDS)
    found = [each.get(PATIENCE_SECONDS) for each in sent]
    sender.close()
    return [(each.partition, each.offset) for each in found]


def polled(reader: KafkaConsumer, timeout_ms: int = 200) -> list[Any]:
    return [record for records in reader.poll(timeout_ms).values() for record in records]


def read(reader: KafkaConsumer, count: int) -> list[Any]:
    """Poll until so many records have come, and no more come."""
    found: list[Any] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records"
        found += polled(reader)
    found += polled(reader)
    same("records", len(found), count)
    return found


def whole(place: Place, topic: str, partitions: int, count: int, **settings: Any) -> list[Any]:
    """All records of a topic, from its start."""
    reader = consumer(place, **settings)
    reader.assign([TopicPartition(topic, each) for each in range(partitions)])
    found = read(reader, count)
    reader.close()
    return found


# --- the stories


def produce_consume(settings: dict[str, Any], place: Place) -> None:
    topic = created(place, 3)
    told = written(place, topic, 3000, 3, **settings)
    same("the offsets", sorted(told), [(part, each) for part in range(3) for each in range(1000)])
    for each in whole(place, topic, 3, 3000):
        number = str(each.offset * 3 + each.partition).encode()
        same("key and value", (each.key, each.value), (b"k" + number, number))
        same("headers", list(each.headers), [("n", number)])
        same("the time", each.timestamp, _FIRST_MS + int(number))


def small_records(place: Place) -> None:
    topic = created(place, 4)
    written(place, topic, 10_000, 4, batch_size=2000)
    for each in whole(place, topic, 4, 10_000):
        same("the value", each.value, str(each.offset * 4 + each.partition).encode())


def group(assignor: type, place: Place) -> None:
    topic, settings = created(place, 4), {"group_id": place.topic, "partition_assignment_strategy": [assignor]}
    written(place, topic, 400, 4)
    first = consumer(place, heartbeat_interval_ms=300, **settings)
    first.subscribe([topic])
    read(first, 400)
    first.commit()
    second = consumer(place, heartbeat_interval_ms=300, **settings)
    second.subscribe([topic])

    def shared(*members: KafkaConsumer) -> list[int]:
        for each in members:
            polled(each, 100)
        return [len(each.assignment()) for each in members]

    until("two partitions each", lambda: shared(first, second) == [2, 2])
    same("positions", [first.committed(TopicPartition(topic, each)) for each in range(4)], [100] * 4)
    written(place, topic, 40, 4)
    read(second, 20)
    second.commit()
    second.close()
    until("all partitions again", lambda: shared(first) == [4])
    first.close()


def transactions(place: Place) -> None:
    topic = created(place, 2)
    sender = producer(place, transactional_id=place.topic)
    sender.init_transactions()
    for each in range(10):
        sender.begin_transaction()
        for part in range(2):
            sender.send(topic, str(each).encode(), partition=part)
        sender.flush(PATIENCE_SECONDS)
        sender.send_offsets_to_transaction({TopicPartition(topic, 0): OffsetAndMetadata(each, "", -1)}, place.topic)
        if each % 2:
            sender.abort_transaction()
        else:
            sender.commit_transaction()
    sender.close()
    found = whole(place, topic, 2, 10, isolation_level="read_committed")
    same("values", sorted(each.value for each in found), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    whole(place, topic, 2, 20)
    reader = consumer(place, group_id=place.topic)
    same("the position", reader.committed(TopicPartition(topic, 0)), 8)
    reader.close()


def fenced(place: Place) -> None:
    topic = created(place)
    first, second = (producer(place, transactional_id=place.topic) for _ in range(2))
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
    (found,) = whole(place, topic, 1, 1, isolation_level="read_committed")
    same("the value", found.value, b"of the second")


def offsets(place: Place) -> None:
    topic = created(place)
    written(place, topic, 100, 1)
    part, reader = TopicPartition(topic, 0), consumer(place, auto_offset_reset="none")
    found = reader.offsets_for_times({part: _FIRST_MS + 7})
    same("the offset of a time", (found[part].offset, found[part].timestamp), (7, _FIRST_MS + 7))
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
    with admin(place.address) as a:
        for spec, offset in ((OffsetSpec.EARLIEST, 0), (OffsetSpec.LATEST, 100), (OffsetSpec.MAX_TIMESTAMP, 99)):
            same(f"the offset of {spec}", a.list_partition_offsets({part: spec})[part].offset, offset)


def topics(place: Place) -> None:
    topic = created(place, 2, **{"cleanup.policy": "compact"})
    try:
        created(place, 2)
    except TopicAlreadyExistsError:
        pass
    else:
        raise AssertionError("it was created twice")
    with admin(place.address) as a:
        a.create_partitions({topic: 4})
        same("partitions", len(a.describe_topics([topic])[0]["partitions"]), 4)

        def asked(name: str) -> str:
            resource = ConfigResource(ConfigResourceType.TOPIC, topic)
            return str(a.describe_configs([resource], config_filter="all")["topic"][topic][name]["value"])

        same("the policy", asked("cleanup.policy"), "compact")
        a.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "1000"})])
        same("the age", asked("retention.ms"), "1000")
        assert topic in a.list_topics()
        a.elect_leaders(0, {topic: [0]})
        assert a.describe_cluster()["cluster_id"]
        a.delete_topics([topic])
        until("it is gone", lambda: topic not in a.list_topics())


def groups(place: Place) -> None:
    topic, part = created(place), TopicPartition(place.topic, 0)
    written(place, topic, 10, 1)
    reader = consumer(place, group_id=topic)
    reader.subscribe([topic])
    read(reader, 10)
    reader.commit()
    with admin(place.address) as a:
        same("the state", a.describe_groups([topic])[topic]["group_state"].lower(), "stable")
        assert topic in [each["group_id"] for each in a.list_groups()]
        reader.close()
        a.alter_group_offsets(topic, {part: OffsetAndMetadata(4, "", -1)})
        same("the position", a.list_group_offsets(topic)[topic][part].offset, 4)
        a.reset_group_offsets(topic, {part: OffsetSpec.LATEST})
        same("the position", a.list_group_offsets(topic)[topic][part].offset, 10)
        a.delete_group_offsets(topic, [part])
        a.delete_groups([topic])
        assert topic not in [each["group_id"] for each in a.list_groups()]


def delete_records(place: Place) -> None:
    topic = created(place)
    written(place, topic, 10, 1)
    with admin(place.address) as a:
        a.delete_records({TopicPartition(topic, 0): 4})
    same("the offsets", [each.offset for each in whole(place, topic, 1, 6)], list(range(4, 10)))


def acls(place: Place) -> None:
    of = ResourcePattern(ResourceType.TOPIC, place.topic)
    with admin(place.secured) as a:
        a.create_acls([ACL("User:alice", "*", ACLOperation.READ, ACLPermissionType.ALLOW, of)])
        asked = ACLFilter(None, None, ACLOperation.ANY, ACLPermissionType.ANY, of)
        same("entries", len(a.describe_acls(asked)[0]), 1)
        a.delete_acls([asked])
        same("entries", len(a.describe_acls(asked)[0]), 0)


def users(place: Place) -> None:
    user, kind = place.topic, ScramMechanism.SCRAM_SHA_256
    with admin(place.secured) as a:
        a.alter_user_scram_credentials([UserScramCredentialUpsertion(user, kind, b"a-password", iterations=4096)])
        told = a.describe_user_scram_credentials([user])[user]
        same("iterations", [each["iterations"] for each in told["credential_infos"]], [4096])
        a.alter_user_scram_credentials([UserScramCredentialDeletion(user, kind)])


def transactions_of_all(place: Place) -> None:
    topic = created(place)
    sender = producer(place, transactional_id=place.topic)
    sender.init_transactions()
    sender.begin_transaction()
    sender.send(topic, b"one").get(PATIENCE_SECONDS)
    sender.commit_transaction()
    with admin(place.address) as a:
        shown = str(a.list_transactions())
        assert place.topic in shown, shown
        shown = str(a.describe_transactions([place.topic]))
        assert "Complete" in shown or "COMPLETE" in shown, shown
        a.describe_producers([TopicPartition(topic, 0)])
        a.describe_log_dirs()
    sender.close()


STORIES: dict[str, Callable[[Place], None]] = {
    "produce-consume": partial(produce_consume, {}),
    **{
        f"codec-{each}": partial(produce_consume, {"compression_type": each})
        for each in ("gzip", "snappy", "lz4", "zstd")
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

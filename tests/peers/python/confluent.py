"""The stories of confluent-kafka, which is librdkafka: confluent.py ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    ConsumerGroupTopicPartitions,
    ElectionType,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from peers.python.story import PATIENCE_SECONDS, Place, run, same, until

_FIRST_MS = 1_700_000_000_000


@cache
def admin(at: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": at})


def done(futures: dict[Any, Any]) -> list[Any]:
    """The results of an admin client's call."""
    return [each.result(PATIENCE_SECONDS) for each in futures.values()]


def created(place: Place, partitions: int = 1, name: str = "", **config: str) -> str:
    topic = name or place.topic
    done(admin(place.address).create_topics([NewTopic(topic, partitions, 1, config=config)]))
    return topic


def producer(place: Place, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": place.address, **named})


def consumer(place: Place, **settings: Any) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    defaults = {"group.id": place.topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": place.address, **defaults, **named})


def written(place: Place, topic: str, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; partitions and offsets by the reports."""
    sender, told = producer(place, **settings), []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        told.append((message.partition(), message.offset()))

    for each in range(count):
        number = str(each).encode()
        sender.produce(
            topic,
            number,
            b"k" + number,
            each % partitions,
            on_delivery=report,
            timestamp=_FIRST_MS + each,
            headers=[("n", number), ("none", None)],
        )
        sender.poll(0)
    same("records that were not sent", sender.flush(PATIENCE_SECONDS), 0)
    return told


def read(reader: Consumer, count: int) -> list[Message]:
    """Poll until so many records have come, and no more come."""
    found: list[Message] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records"
        found += _good(reader.consume(1000, 0.2))
    return found + _good(reader.consume(1, 0.2))


def _good(messages: Iterable[Message]) -> list[Message]:
    found = list(messages)
    for each in found:
        if each.error():
            raise KafkaException(each.error())
    return found


def whole(place: Place, topic: str, partitions: int, count: int, **settings: Any) -> list[Message]:
    """All records of a topic, from its start."""
    reader = consumer(place, **settings)
    reader.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    found = read(reader, count)
    reader.close()
    same("records", len(found), count)
    return found


def refused(code: int, call: Callable[[], object]) -> None:
    try:
        call()
    except KafkaException as error:
        same("the error", error.args[0].name(), KafkaError(code).name())
    else:
        raise AssertionError("it was not refused")


# --- the stories


def produce_consume(place: Place) -> None:
    topic = created(place, 3)
    told = written(place, topic, 3000, 3)
    same("the offsets", sorted(told), [(part, each) for part in range(3) for each in range(1000)])
    for each in whole(place, topic, 3, 3000):
        number = str(each.offset() * 3 + each.partition()).encode()
        same("key and value", (each.key(), each.value()), (b"k" + number, number))
        same("headers", each.headers(), [("n", number), ("none", None)])
        same("the time", each.timestamp(), (1, _FIRST_MS + int(number)))


def tombstones(place: Place) -> None:
    topic = created(place)
    sender = producer(place)
    for key, value in ((None, None), (b"", b""), (b"k", None)):
        sender.produce(topic, value, key)
    sender.flush(PATIENCE_SECONDS)
    found = [(each.key(), each.value()) for each in whole(place, topic, 1, 3)]
    same("the records", found, [(None, None), (b"", b""), (b"k", None)])


def codec(name: str, place: Place) -> None:
    topic = created(place)
    written(place, topic, 3000, 1, compression_type=name, linger_ms=20)
    found = whole(place, topic, 1, 3000)
    same("values", [each.value() for each in found], [str(each).encode() for each in range(3000)])


def small_records(place: Place) -> None:
    topic = created(place, 4)
    written(place, topic, 10_000, 4, enable_idempotence=True, linger_ms=0, batch_num_messages=20)
    for each in whole(place, topic, 4, 10_000):
        same("the value", each.value(), str(each.offset() * 4 + each.partition()).encode())


def acks(place: Place) -> None:
    topic = created(place)
    for each in ("0", "1", "all"):
        written(place, topic, 10, 1, acks=each)
    whole(place, topic, 1, 30)


def too_large(place: Place) -> None:
    topic = created(place, **{"max.message.bytes": "1000"})
    failed = []
    sender = producer(place, message_timeout_ms=30_000)
    sender.produce(topic, b"x" * 2000, on_delivery=lambda error, _: failed.append(error))
    sender.flush(PATIENCE_SECONDS)
    same("the error", failed[0].code(), KafkaError.MSG_SIZE_TOO_LARGE)


def group(settings: dict[str, Any], place: Place) -> None:
    topic = created(place, 4)
    written(place, topic, 400, 4)
    first = consumer(place, **settings)
    first.subscribe([topic])
    same("records", len(read(first, 400)), 400)
    first.commit(asynchronous=False)
    second = consumer(place, **settings)
    second.subscribe([topic])

    def shared(*members: Consumer) -> list[int]:
        for each in members:
            _good(each.consume(100, 0.1))
        return [len(each.assignment()) for each in members]

    until("two partitions each", lambda: shared(first, second) == [2, 2])
    positions = first.committed([TopicPartition(topic, each) for each in range(4)], PATIENCE_SECONDS)
    same("positions", [each.offset for each in positions], [100] * 4)
    written(place, topic, 40, 4)
    same("records of a member", len(read(second, 20)), 20)
    second.commit(asynchronous=False)
    second.close()
    until("all partitions again", lambda: shared(first) == [4])
    first.close()


def pattern(protocol: str, place: Place) -> None:
    created(place, name=f"{place.topic}-one")
    written(place, f"{place.topic}-one", 10, 1)
    reader = consumer(place, group_protocol=protocol, topic_metadata_refresh_interval_ms=1000)
    reader.subscribe([f"^{place.topic}-.*"])
    same("records", len(read(reader, 10)), 10)
    reader.commit(asynchronous=False)
    created(place, name=f"{place.topic}-two")
    written(place, f"{place.topic}-two", 10, 1)
    same("records of a new topic", len(read(reader, 10)), 10)
    reader.close()


def static_member(place: Place) -> None:
    topic = created(place, 2)
    written(place, topic, 20, 2)
    first = consumer(place, group_instance_id="one")
    first.subscribe([topic])
    read(first, 20)
    first.commit(asynchronous=False)
    first.close()
    back = consumer(place, group_instance_id="one")
    back.subscribe([topic])
    until("its partitions", lambda: back.poll(0.1) is None and len(back.assignment()) == 2)
    back.close()
    told = done(admin(place.address).describe_consumer_groups([topic]))[0]
    same("members that are away", [each.group_instance_id for each in told.members], ["one"])


def transactions(place: Place) -> None:
    topic = created(place, 2)
    sender = producer(place, transactional_id=place.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    for each in range(10):
        sender.begin_transaction()
        for part in range(2):
            sender.produce(topic, str(each).encode(), partition=part)
        sender.flush(PATIENCE_SECONDS)  # an abort drops what was not sent
        if each % 2:
            sender.abort_transaction(PATIENCE_SECONDS)
        else:
            sender.commit_transaction(PATIENCE_SECONDS)
    found = whole(place, topic, 2, 10, isolation_level="read_committed")
    same("values", sorted(each.value() for each in found), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    whole(place, topic, 2, 20, isolation_level="read_uncommitted")


def open_transaction(place: Place) -> None:
    topic = created(place)
    sender = producer(place, transactional_id=place.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    sender.begin_transaction()
    sender.produce(topic, b"undecided")
    sender.flush(PATIENCE_SECONDS)
    written(place, topic, 1, 1)
    asked = {TopicPartition(topic, 0): OffsetSpec.latest()}
    for level, end in ((IsolationLevel.READ_UNCOMMITTED, 2), (IsolationLevel.READ_COMMITTED, 0)):
        told = done(admin(place.address).list_offsets(asked, isolation_level=level))
        same(f"the end by {level}", told[0].offset, end)
    sender.commit_transaction(PATIENCE_SECONDS)
    whole(place, topic, 1, 2, isolation_level="read_committed")


def fenced(place: Place) -> None:
    topic = created(place)
    first, second = (producer(place, transactional_id=place.topic) for _ in range(2))
    first.init_transactions(PATIENCE_SECONDS)
    first.begin_transaction()
    first.produce(topic, b"of the first")
    first.flush(PATIENCE_SECONDS)
    second.init_transactions(PATIENCE_SECONDS)
    second.begin_transaction()
    second.produce(topic, b"of the second")
    second.commit_transaction(PATIENCE_SECONDS)
    refused(KafkaError._FENCED, lambda: first.commit_transaction(PATIENCE_SECONDS))
    found = whole(place, topic, 1, 1, isolation_level="read_committed")
    same("the value", found[0].value(), b"of the second")


def exactly_once(place: Place) -> None:
    topic, target = created(place, 2), created(place, 2, f"{place.topic}-out")
    written(place, topic, 500, 2)
    reader = consumer(place, isolation_level="read_committed")
    reader.subscribe([topic])
    sender = producer(place, transactional_id=place.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    count = 0
    while count < 500:
        found = _good(reader.consume(100, 0.5))
        if not found:
            continue
        sender.begin_transaction()
        for each in found:
            sender.produce(target, each.value(), partition=each.partition())
        positions = reader.position(reader.assignment())
        sender.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), PATIENCE_SECONDS)
        sender.commit_transaction(PATIENCE_SECONDS)
        count += len(found)
    told = reader.committed([TopicPartition(topic, each) for each in range(2)], PATIENCE_SECONDS)
    same("positions", [each.offset for each in told], [250, 250])
    reader.close()
    whole(place, target, 2, 500, isolation_level="read_committed")


def offsets_by_time(place: Place) -> None:
    topic = created(place)
    written(place, topic, 100, 1)
    reader = consumer(place)
    for at, offset in ((0, 0), (50, 50), (100, OFFSET_END)):
        (found,) = reader.offsets_for_times([TopicPartition(topic, 0, _FIRST_MS + at)], PATIENCE_SECONDS)
        same(f"the offset of time {at}", found.offset, offset)
    same("the ends", reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS), (0, 100))
    reader.close()
    asked = ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 100), (OffsetSpec.max_timestamp(), 99))
    for spec, offset in (*asked, (OffsetSpec.for_timestamp(_FIRST_MS + 7), 7)):
        found = done(admin(place.address).list_offsets({TopicPartition(topic, 0): spec}))
        same(f"the offset of {spec}", found[0].offset, offset)


def out_of_range(place: Place) -> None:
    topic = created(place)
    written(place, topic, 10, 1)
    for reset, count in (("earliest", 10), ("error", 0)):
        reader = consumer(place, auto_offset_reset=reset)
        reader.assign([TopicPartition(topic, 0, 1000)])
        if count:
            same("records", len(read(reader, count)), count)
        else:
            refused(KafkaError._AUTO_OFFSET_RESET, lambda reader=reader: read(reader, 1))
        reader.close()


def topics(place: Place) -> None:
    topic, a = created(place, 2, **{"cleanup.policy": "compact"}), admin(place.address)
    refused(KafkaError.TOPIC_ALREADY_EXISTS, lambda: created(place, 2))
    done(a.create_partitions([NewPartitions(topic, 4)]))
    (told,) = done(a.describe_topics(TopicCollection([topic])))
    same("partitions", len(told.partitions), 4)
    assert topic in a.list_topics(timeout=PATIENCE_SECONDS).topics
    done(a.delete_topics([topic]))
    until("it is gone", lambda: topic not in a.list_topics(timeout=PATIENCE_SECONDS).topics)
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: done(a.delete_topics([topic])))


def configs(place: Place) -> None:
    topic, a = created(place, **{"cleanup.policy": "compact"}), admin(place.address)

    def value(name: str) -> str:
        (found,) = done(a.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))
        return found[name].value

    def alter(name: str, text: str | None, kind: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, text, incremental_operation=kind)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        done(a.incremental_alter_configs([resource]))

    same("the policy", value("cleanup.policy"), "compact")
    alter("retention.ms", "1000", AlterConfigOpType.SET)
    alter("cleanup.policy", "delete", AlterConfigOpType.APPEND)
    same("the age", value("retention.ms"), "1000")
    same("the policy", value("cleanup.policy"), "compact,delete")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    same("the age", value("retention.ms"), "604800000")
    refused(KafkaError.INVALID_CONFIG, lambda: alter("retention.ms", "nonsense", AlterConfigOpType.SET))
    node = str(next(iter(a.list_topics(timeout=PATIENCE_SECONDS).brokers)))
    (broker,) = done(a.describe_configs([ConfigResource(ConfigResource.Type.BROKER, node)]))
    assert "num.io.threads" in broker


def groups(place: Place) -> None:
    topic, a = created(place, 2), admin(place.address)
    written(place, topic, 20, 2)
    reader = consumer(place)
    reader.subscribe([topic])
    read(reader, 20)
    reader.commit(asynchronous=False)
    (told,) = done(a.describe_consumer_groups([topic]))
    same("the state", told.state.name, "STABLE")
    same("partitions of its member", len(told.members[0].assignment.topic_partitions), 2)
    assert topic in [each.group_id for each in a.list_consumer_groups().result(PATIENCE_SECONDS).valid]
    reader.close()
    moved = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 4)])
    done(a.alter_consumer_group_offsets([moved]))
    (told,) = done(a.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)]))
    same("positions", {each.partition: each.offset for each in told.topic_partitions}, {0: 4, 1: 10})
    done(a.delete_consumer_groups([topic]))
    assert topic not in [each.group_id for each in a.list_consumer_groups().result(PATIENCE_SECONDS).valid]


def delete_records(place: Place) -> None:
    topic = created(place)
    written(place, topic, 10, 1)
    (told,) = done(admin(place.address).delete_records([TopicPartition(topic, 0, 4)]))
    same("the start", told.low_watermark, 4)
    reader = consumer(place)
    reader.assign([TopicPartition(topic, 0, 0)])
    same("the offsets", [each.offset() for each in read(reader, 6)], list(range(4, 10)))
    reader.close()


def cluster(place: Place) -> None:
    a = admin(place.address)
    told = a.describe_cluster().result(PATIENCE_SECONDS)
    assert told.cluster_id
    same("nodes", len(told.nodes), 1)
    topic = created(place)
    a.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(PATIENCE_SECONDS)


def acls(place: Place) -> None:
    a, everything = admin(place.secured), (ResourceType.TOPIC, place.topic, ResourcePatternType.LITERAL)
    done(a.create_acls([AclBinding(*everything, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)]))
    asked = AclBindingFilter(*everything, None, None, AclOperation.ANY, AclPermissionType.ANY)
    same("entries", len(a.describe_acls(asked).result(PATIENCE_SECONDS)), 1)
    same("removed", [len(each) for each in done(a.delete_acls([asked]))], [1])
    same("entries", len(a.describe_acls(asked).result(PATIENCE_SECONDS)), 0)


def users(place: Place) -> None:
    a, user = admin(place.secured), place.topic
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    done(a.alter_user_scram_credentials([UserScramCredentialUpsertion(user, how, b"a-password")]))
    (told,) = done(a.describe_user_scram_credentials([user]))
    same("iterations", [each.iterations for each in told.scram_credential_infos], [4096])
    done(a.alter_user_scram_credentials([UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)]))
    refused(KafkaError.RESOURCE_NOT_FOUND, lambda: done(a.describe_user_scram_credentials([user])))


STORIES: dict[str, Callable[[Place], None]] = {
    "produce-consume": produce_consume,
    "tombstones": tombstones,
    **{f"codec-{each}": partial(codec, each) for each in ("gzip", "snappy", "lz4", "zstd")},
    "small-records": small_records,
    "acks": acks,
    "too-large": too_large,
    "group-range": partial(group, {}),
    "group-cooperative": partial(group, {"partition_assignment_strategy": "cooperative-sticky"}),
    "group-848": partial(group, {"group_protocol": "consumer"}),
    "pattern": partial(pattern, "classic"),
    "pattern-848": partial(pattern, "consumer"),
    "static-member": static_member,
    "transactions": transactions,
    "open-transaction": open_transaction,
    "fenced": fenced,
    "exactly-once": exactly_once,
    "offsets-by-time": offsets_by_time,
    "out-of-range": out_of_range,
    "topics": topics,
    "configs": configs,
    "groups": groups,
    "delete-records": delete_records,
    "cluster": cluster,
    "acls": acls,
    "users": users,
}

if __name__ == "__main__":
    run(STORIES)

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

from peers.python.story import PATIENCE_SECONDS, Target, run, same, until

_FIRST_MS = 1_700_000_000_000


@cache
def admin(address: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": address})


def results_of(futures: dict[Any, Any]) -> list[Any]:
    """The results of an admin client's call."""
    return [future.result(PATIENCE_SECONDS) for future in futures.values()]


def created(target: Target, partitions: int = 1, name: str = "", **config: str) -> str:
    topic = name or target.topic
    results_of(admin(target.address).create_topics([NewTopic(topic, partitions, 1, config=config)]))
    return topic


def producer(target: Target, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": target.address, **named})


def consumer(target: Target, **settings: Any) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    defaults = {"group.id": target.topic, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    return Consumer({"bootstrap.servers": target.address, **defaults, **named})


def written(target: Target, topic: str, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; partitions and offsets by the reports."""
    sender, deliveries = producer(target, **settings), []

    def report(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise KafkaException(error)
        deliveries.append((message.partition(), message.offset()))

    for index in range(count):
        number = str(index).encode()
        sender.produce(
            topic,
            number,
            b"k" + number,
            index % partitions,
            on_delivery=report,
            timestamp=_FIRST_MS + index,
            headers=[("n", number), ("none", None)],
        )
        sender.poll(0)
    same("records that were not sent", sender.flush(PATIENCE_SECONDS), 0)
    return deliveries


def read(reader: Consumer, count: int) -> list[Message]:
    """Poll until `count` records have come, and no more come."""
    records: list[Message] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(records) < count:
        assert time.monotonic() < end, f"{len(records)} of {count} records"
        records += _good(reader.consume(1000, 0.2))
    return records + _good(reader.consume(1, 0.2))


def _good(messages: Iterable[Message]) -> list[Message]:
    batch = list(messages)
    for message in batch:
        if message.error():
            raise KafkaException(message.error())
    return batch


def read_all(target: Target, topic: str, partitions: int, count: int, **settings: Any) -> list[Message]:
    reader = consumer(target, **settings)
    reader.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    messages = read(reader, count)
    reader.close()
    same("records", len(messages), count)
    return messages


def refused(code: int, call: Callable[[], object]) -> None:
    try:
        call()
    except KafkaException as error:
        same("the error", error.args[0].name(), KafkaError(code).name())
    else:
        raise AssertionError("it was not refused")


# --- the stories


def produce_consume(target: Target) -> None:
    topic = created(target, 3)
    positions = written(target, topic, 3000, 3)
    same("the offsets", sorted(positions), [(part, record) for part in range(3) for record in range(1000)])
    for record in read_all(target, topic, 3, 3000):
        number = str(record.offset() * 3 + record.partition()).encode()
        same("key and value", (record.key(), record.value()), (b"k" + number, number))
        same("headers", record.headers(), [("n", number), ("none", None)])
        same("the time", record.timestamp(), (1, _FIRST_MS + int(number)))


def tombstones(target: Target) -> None:
    topic = created(target)
    sender = producer(target)
    for key, value in ((None, None), (b"", b""), (b"k", None)):
        sender.produce(topic, value, key)
    sender.flush(PATIENCE_SECONDS)
    pairs = [(record.key(), record.value()) for record in read_all(target, topic, 1, 3)]
    same("the records", pairs, [(None, None), (b"", b""), (b"k", None)])


def codec(name: str, target: Target) -> None:
    topic = created(target)
    written(target, topic, 3000, 1, compression_type=name, linger_ms=20)
    records = read_all(target, topic, 1, 3000)
    same("values", [number.value() for number in records], [str(number).encode() for number in range(3000)])


def small_records(target: Target) -> None:
    topic = created(target, 4)
    written(target, topic, 10_000, 4, enable_idempotence=True, linger_ms=0, batch_num_messages=20)
    for record in read_all(target, topic, 4, 10_000):
        same("the value", record.value(), str(record.offset() * 4 + record.partition()).encode())


def acks(target: Target) -> None:
    topic = created(target)
    for name in ("0", "1", "all"):
        written(target, topic, 10, 1, acks=name)
    read_all(target, topic, 1, 30)


def too_large(target: Target) -> None:
    topic = created(target, **{"max.message.bytes": "1000"})
    failed = []
    sender = producer(target, message_timeout_ms=30_000)
    sender.produce(topic, b"x" * 2000, on_delivery=lambda error, _: failed.append(error))
    sender.flush(PATIENCE_SECONDS)
    same("the error", failed[0].code(), KafkaError.MSG_SIZE_TOO_LARGE)


def group(settings: dict[str, Any], target: Target) -> None:
    topic = created(target, 4)
    written(target, topic, 400, 4)
    first = consumer(target, **settings)
    first.subscribe([topic])
    same("records", len(read(first, 400)), 400)
    first.commit(asynchronous=False)
    second = consumer(target, **settings)
    second.subscribe([topic])

    def shared(*members: Consumer) -> list[int]:
        for member in members:
            _good(member.consume(100, 0.1))
        return [len(member.assignment()) for member in members]

    until("two partitions each", lambda: shared(first, second) == [2, 2])
    positions = first.committed([TopicPartition(topic, member) for member in range(4)], PATIENCE_SECONDS)
    same("positions", [member.offset for member in positions], [100] * 4)
    written(target, topic, 40, 4)
    same("records of a member", len(read(second, 20)), 20)
    second.commit(asynchronous=False)
    second.close()
    until("all partitions again", lambda: shared(first) == [4])
    first.close()


def pattern(protocol: str, target: Target) -> None:
    created(target, name=f"{target.topic}-one")
    written(target, f"{target.topic}-one", 10, 1)
    reader = consumer(target, group_protocol=protocol, topic_metadata_refresh_interval_ms=1000)
    reader.subscribe([f"^{target.topic}-.*"])
    same("records", len(read(reader, 10)), 10)
    reader.commit(asynchronous=False)
    created(target, name=f"{target.topic}-two")
    written(target, f"{target.topic}-two", 10, 1)
    same("records of a new topic", len(read(reader, 10)), 10)
    reader.close()


def static_member(target: Target) -> None:
    topic = created(target, 2)
    written(target, topic, 20, 2)
    first = consumer(target, group_instance_id="one")
    first.subscribe([topic])
    read(first, 20)
    first.commit(asynchronous=False)
    first.close()
    back = consumer(target, group_instance_id="one")
    back.subscribe([topic])
    until("its partitions", lambda: back.poll(0.1) is None and len(back.assignment()) == 2)
    back.close()
    description = results_of(admin(target.address).describe_consumer_groups([topic]))[0]
    same("members that are away", [member.group_instance_id for member in description.members], ["one"])


def transactions(target: Target) -> None:
    topic = created(target, 2)
    sender = producer(target, transactional_id=target.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    for number in range(10):
        sender.begin_transaction()
        for part in range(2):
            sender.produce(topic, str(number).encode(), partition=part)
        sender.flush(PATIENCE_SECONDS)  # an abort drops what was not sent
        if number % 2:
            sender.abort_transaction(PATIENCE_SECONDS)
        else:
            sender.commit_transaction(PATIENCE_SECONDS)
    records = read_all(target, topic, 2, 10, isolation_level="read_committed")
    same("values", sorted(number.value() for number in records), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    read_all(target, topic, 2, 20, isolation_level="read_uncommitted")


def open_transaction(target: Target) -> None:
    topic = created(target)
    sender = producer(target, transactional_id=target.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    sender.begin_transaction()
    sender.produce(topic, b"undecided")
    sender.flush(PATIENCE_SECONDS)
    written(target, topic, 1, 1)
    specs = {TopicPartition(topic, 0): OffsetSpec.latest()}
    for level, end in ((IsolationLevel.READ_UNCOMMITTED, 2), (IsolationLevel.READ_COMMITTED, 0)):
        offsets = results_of(admin(target.address).list_offsets(specs, isolation_level=level))
        same(f"the end by {level}", offsets[0].offset, end)
    sender.commit_transaction(PATIENCE_SECONDS)
    read_all(target, topic, 1, 2, isolation_level="read_committed")


def fenced(target: Target) -> None:
    topic = created(target)
    first, second = (producer(target, transactional_id=target.topic) for _ in range(2))
    first.init_transactions(PATIENCE_SECONDS)
    first.begin_transaction()
    first.produce(topic, b"of the first")
    first.flush(PATIENCE_SECONDS)
    second.init_transactions(PATIENCE_SECONDS)
    second.begin_transaction()
    second.produce(topic, b"of the second")
    second.commit_transaction(PATIENCE_SECONDS)
    refused(KafkaError._FENCED, lambda: first.commit_transaction(PATIENCE_SECONDS))
    records = read_all(target, topic, 1, 1, isolation_level="read_committed")
    same("the value", records[0].value(), b"of the second")


def exactly_once(target: Target) -> None:
    topic, output = created(target, 2), created(target, 2, f"{target.topic}-out")
    written(target, topic, 500, 2)
    reader = consumer(target, isolation_level="read_committed")
    reader.subscribe([topic])
    sender = producer(target, transactional_id=target.topic)
    sender.init_transactions(PATIENCE_SECONDS)
    count = 0
    while count < 500:
        records = _good(reader.consume(100, 0.5))
        if not records:
            continue
        sender.begin_transaction()
        for number in records:
            sender.produce(output, number.value(), partition=number.partition())
        positions = reader.position(reader.assignment())
        sender.send_offsets_to_transaction(positions, reader.consumer_group_metadata(), PATIENCE_SECONDS)
        sender.commit_transaction(PATIENCE_SECONDS)
        count += len(records)
    committed = reader.committed([TopicPartition(topic, number) for number in range(2)], PATIENCE_SECONDS)
    same("positions", [number.offset for number in committed], [250, 250])
    reader.close()
    read_all(target, output, 2, 500, isolation_level="read_committed")


def offsets_by_time(target: Target) -> None:
    topic = created(target)
    written(target, topic, 100, 1)
    reader = consumer(target)
    for time_ms, offset in ((0, 0), (50, 50), (100, OFFSET_END)):
        (result,) = reader.offsets_for_times([TopicPartition(topic, 0, _FIRST_MS + time_ms)], PATIENCE_SECONDS)
        same(f"the offset of time {time_ms}", result.offset, offset)
    same("the ends", reader.get_watermark_offsets(TopicPartition(topic, 0), PATIENCE_SECONDS), (0, 100))
    reader.close()
    specs = ((OffsetSpec.earliest(), 0), (OffsetSpec.latest(), 100), (OffsetSpec.max_timestamp(), 99))
    for spec, offset in (*specs, (OffsetSpec.for_timestamp(_FIRST_MS + 7), 7)):
        result = results_of(admin(target.address).list_offsets({TopicPartition(topic, 0): spec}))
        same(f"the offset of {spec}", result[0].offset, offset)


def out_of_range(target: Target) -> None:
    topic = created(target)
    written(target, topic, 10, 1)
    for reset, count in (("earliest", 10), ("error", 0)):
        reader = consumer(target, auto_offset_reset=reset)
        reader.assign([TopicPartition(topic, 0, 1000)])
        if count:
            same("records", len(read(reader, count)), count)
        else:
            refused(KafkaError._AUTO_OFFSET_RESET, lambda reader=reader: read(reader, 1))
        reader.close()


def topics(target: Target) -> None:
    topic, a = created(target, 2, **{"cleanup.policy": "compact"}), admin(target.address)
    refused(KafkaError.TOPIC_ALREADY_EXISTS, lambda: created(target, 2))
    results_of(a.create_partitions([NewPartitions(topic, 4)]))
    (description,) = results_of(a.describe_topics(TopicCollection([topic])))
    same("partitions", len(description.partitions), 4)
    assert topic in a.list_topics(timeout=PATIENCE_SECONDS).topics
    results_of(a.delete_topics([topic]))
    until("it was deleted", lambda: topic not in a.list_topics(timeout=PATIENCE_SECONDS).topics)
    refused(KafkaError.UNKNOWN_TOPIC_OR_PART, lambda: results_of(a.delete_topics([topic])))


def configs(target: Target) -> None:
    topic, a = created(target, **{"cleanup.policy": "compact"}), admin(target.address)

    def value(name: str) -> str:
        (settings,) = results_of(a.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]))
        return settings[name].value

    def alter(name: str, text: str | None, kind: AlterConfigOpType) -> None:
        entry = ConfigEntry(name, text, incremental_operation=kind)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        results_of(a.incremental_alter_configs([resource]))

    same("the policy", value("cleanup.policy"), "compact")
    alter("retention.ms", "1000", AlterConfigOpType.SET)
    alter("cleanup.policy", "delete", AlterConfigOpType.APPEND)
    same("the age", value("retention.ms"), "1000")
    same("the policy", value("cleanup.policy"), "compact,delete")
    alter("retention.ms", None, AlterConfigOpType.DELETE)
    same("the age", value("retention.ms"), "604800000")
    refused(KafkaError.INVALID_CONFIG, lambda: alter("retention.ms", "nonsense", AlterConfigOpType.SET))
    node = str(next(iter(a.list_topics(timeout=PATIENCE_SECONDS).brokers)))
    (broker,) = results_of(a.describe_configs([ConfigResource(ConfigResource.Type.BROKER, node)]))
    assert "num.io.threads" in broker


def groups(target: Target) -> None:
    topic, a = created(target, 2), admin(target.address)
    written(target, topic, 20, 2)
    reader = consumer(target)
    reader.subscribe([topic])
    read(reader, 20)
    reader.commit(asynchronous=False)
    (response,) = results_of(a.describe_consumer_groups([topic]))
    same("the state", response.state.name, "STABLE")
    same("partitions of its member", len(response.members[0].assignment.topic_partitions), 2)
    assert topic in [
        topic_partition.group_id for topic_partition in a.list_consumer_groups().result(PATIENCE_SECONDS).valid
    ]
    reader.close()
    moved = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 4)])
    results_of(a.alter_consumer_group_offsets([moved]))
    (response,) = results_of(a.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)]))
    same(
        "positions",
        {topic_partition.partition: topic_partition.offset for topic_partition in response.topic_partitions},
        {0: 4, 1: 10},
    )
    results_of(a.delete_consumer_groups([topic]))
    assert topic not in [
        topic_partition.group_id for topic_partition in a.list_consumer_groups().result(PATIENCE_SECONDS).valid
    ]


def delete_records(target: Target) -> None:
    topic = created(target)
    written(target, topic, 10, 1)
    (response,) = results_of(admin(target.address).delete_records([TopicPartition(topic, 0, 4)]))
    same("the start", response.low_watermark, 4)
    reader = consumer(target)
    reader.assign([TopicPartition(topic, 0, 0)])
    same("the offsets", [record.offset() for record in read(reader, 6)], list(range(4, 10)))
    reader.close()


def cluster(target: Target) -> None:
    a = admin(target.address)
    description = a.describe_cluster().result(PATIENCE_SECONDS)
    assert description.cluster_id
    same("nodes", len(description.nodes), 1)
    topic = created(target)
    a.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(PATIENCE_SECONDS)


def acls(target: Target) -> None:
    a, everything = admin(target.secured), (ResourceType.TOPIC, target.topic, ResourcePatternType.LITERAL)
    results_of(
        a.create_acls([AclBinding(*everything, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW)])
    )
    acl_filter = AclBindingFilter(*everything, None, None, AclOperation.ANY, AclPermissionType.ANY)
    same("entries", len(a.describe_acls(acl_filter).result(PATIENCE_SECONDS)), 1)
    same("removed", [len(removed) for removed in results_of(a.delete_acls([acl_filter]))], [1])
    same("entries", len(a.describe_acls(acl_filter).result(PATIENCE_SECONDS)), 0)


def users(target: Target) -> None:
    a, user = admin(target.secured), target.topic
    how = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    results_of(a.alter_user_scram_credentials([UserScramCredentialUpsertion(user, how, b"a-password")]))
    (description,) = results_of(a.describe_user_scram_credentials([user]))
    same(
        "iterations",
        [scram_credential_info.iterations for scram_credential_info in description.scram_credential_infos],
        [4096],
    )
    results_of(a.alter_user_scram_credentials([UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)]))
    refused(KafkaError.RESOURCE_NOT_FOUND, lambda: results_of(a.describe_user_scram_credentials([user])))


STORIES: dict[str, Callable[[Target], None]] = {
    "produce-consume": produce_consume,
    "tombstones": tombstones,
    **{f"codec-{name}": partial(codec, name) for name in ("gzip", "snappy", "lz4", "zstd")},
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

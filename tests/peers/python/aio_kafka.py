"""The stories of aiokafka: aio_kafka.py ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.errors import KafkaError, OffsetOutOfRangeError, ProducerFenced

from peers.python.story import PATIENCE_SECONDS, Target, run, same

_FIRST_MS = 1_700_000_000_000


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """A client from its start to its end."""
    await client.start()
    try:
        yield client
    finally:
        await (client.close if isinstance(client, AIOKafkaAdminClient) else client.stop)()


def admin(target: Target) -> Any:
    return started(AIOKafkaAdminClient(bootstrap_servers=target.address))


def producer(target: Target, **settings: Any) -> Any:
    return started(AIOKafkaProducer(bootstrap_servers=target.address, **settings))


def consumer(target: Target, *topics: str, **settings: Any) -> Any:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return started(AIOKafkaConsumer(*topics, bootstrap_servers=target.address, **{**defaults, **settings}))


async def created(target: Target, partitions: int = 1) -> str:
    async with admin(target) as a:
        response = await a.create_topics([NewTopic(target.topic, partitions, 1)])
    same("the code", [error[1] for error in response.topic_errors], [0])
    return target.topic


async def written(target: Target, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; returns the reported partitions and offsets."""
    async with producer(target, **settings) as sender:
        sent = [
            await sender.send(
                target.topic,
                str(number).encode(),
                key=b"k%d" % number,
                partition=number % partitions,
                timestamp_ms=_FIRST_MS + number,
                headers=[("n", b"%d" % number)],
            )
            for number in range(count)
        ]
        reports = await asyncio.gather(*sent)
    return [(number.partition, number.offset) for number in reports]


async def read(reader: AIOKafkaConsumer, count: int) -> list[Any]:
    """Read until `count` records have come, and no more come."""
    records: list[Any] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(records) < count:
        assert time.monotonic() < end, f"{len(records)} of {count} records"
        records += [record for several in (await reader.getmany(timeout_ms=200)).values() for record in several]
    records += [record for several in (await reader.getmany(timeout_ms=200)).values() for record in several]
    same("records", len(records), count)
    return records


async def read_all(target: Target, partitions: int, count: int, **settings: Any) -> list[Any]:
    """All records of a topic, from its start."""
    async with consumer(target, **settings) as reader:
        reader.assign([TopicPartition(target.topic, number) for number in range(partitions)])
        return await read(reader, count)


# --- the stories


async def produce_consume(settings: dict[str, Any], target: Target) -> None:
    await created(target, 3)
    positions = await written(target, 3000, 3, **settings)
    same("the offsets", sorted(positions), [(part, record) for part in range(3) for record in range(1000)])
    for record in await read_all(target, 3, 3000):
        number = b"%d" % (record.offset * 3 + record.partition)
        same("key and value", (record.key, record.value), (b"k" + number, number))
        same("headers and time", (record.headers, record.timestamp), ((("n", number),), _FIRST_MS + int(number)))


async def group(target: Target) -> None:
    topic = await created(target, 4)
    await written(target, 400, 4)
    settings = {"group_id": topic, "heartbeat_interval_ms": 300}
    async with consumer(target, topic, **settings) as first:
        await read(first, 400)
        await first.commit()
        async with consumer(target, topic, **settings) as second:
            await shared("two partitions each", [2, 2], first, second)
            committed = [await first.committed(TopicPartition(topic, number)) for number in range(4)]
            same("positions", committed, [100] * 4)
            await written(target, 40, 4)
            await asyncio.gather(read(first, 20), read(second, 20))
            await second.commit()
        await shared("all partitions again", [4], first)


async def shared(subject: str, counts: list[int], *members: AIOKafkaConsumer) -> None:
    """Poll until the members have these numbers of partitions."""
    end = time.monotonic() + PATIENCE_SECONDS
    while [len(member.assignment()) for member in members] != counts:
        assert time.monotonic() < end, f"not in time: {subject}"
        await asyncio.sleep(0.05)


async def transactions(target: Target) -> None:
    topic = await created(target, 2)
    async with producer(target, transactional_id=topic) as sender:
        for number in range(10):
            await sender.begin_transaction()
            for part in range(2):
                await sender.send_and_wait(topic, b"%d" % number, partition=part)
            await sender.send_offsets_to_transaction({TopicPartition(topic, 0): number}, topic)
            await (sender.abort_transaction if number % 2 else sender.commit_transaction)()
    records = await read_all(target, 2, 10, isolation_level="read_committed")
    same("values", sorted(number.value for number in records), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    await read_all(target, 2, 20)
    async with consumer(target, group_id=topic) as reader:
        same("the position", await reader.committed(TopicPartition(topic, 0)), 8)


async def fenced(target: Target) -> None:
    topic = await created(target)
    async with producer(target, transactional_id=topic) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"of the first")
        async with producer(target, transactional_id=topic) as second, second.transaction():
            await second.send_and_wait(topic, b"of the second")
        with suppress(ProducerFenced):
            await first.commit_transaction()
            raise AssertionError("the first producer was not fenced")
    (record,) = await read_all(target, 1, 1, isolation_level="read_committed")
    same("the value", record.value, b"of the second")


async def offsets(target: Target) -> None:
    topic = await created(target)
    await written(target, 100, 1)
    part = TopicPartition(topic, 0)
    async with consumer(target, auto_offset_reset="none") as reader:
        reader.assign([part])
        time_offset = (await reader.offsets_for_times({part: _FIRST_MS + 7}))[part]
        same("the offset of a time", (time_offset.offset, time_offset.timestamp), (7, _FIRST_MS + 7))
        same("after all", (await reader.offsets_for_times({part: _FIRST_MS + 100}))[part], None)
        ends = (await reader.beginning_offsets([part]))[part], (await reader.end_offsets([part]))[part]
        same("the ends", ends, (0, 100))
        reader.seek(part, 1000)
        with suppress(OffsetOutOfRangeError):
            await read(reader, 1)
            raise AssertionError("an offset that is out of range was read")


async def topics(target: Target) -> None:
    topic = await created(target, 2)
    async with admin(target) as a:
        with suppress(KafkaError):
            response = await a.create_topics([NewTopic(topic, 2, 1)])
            assert response.topic_errors[0][1] != 0, "it was created twice"
        await a.create_partitions({topic: NewPartitions(4)})
        (described,) = await a.describe_topics([topic])
        same("partitions", len(described["partitions"]), 4)
        assert topic in await a.list_topics()
        assert await a.describe_cluster()
        await a.delete_topics([topic])
        end = time.monotonic() + PATIENCE_SECONDS
        while topic in await a.list_topics():
            assert time.monotonic() < end, "it is not gone"
            await asyncio.sleep(0.05)


async def groups(target: Target) -> None:
    topic = await created(target)
    await written(target, 10, 1)
    async with consumer(target, topic, group_id=topic) as reader, admin(target) as a:
        await read(reader, 10)
        await reader.commit()
        assert topic in [consumer_group[0] for consumer_group in await a.list_consumer_groups()]
        await a.describe_consumer_groups([topic])
        consumer_group_offsets = await a.list_consumer_group_offsets(topic)
        same("the position", consumer_group_offsets[TopicPartition(topic, 0)].offset, 10)


def _alone(story: Callable[[Target], Awaitable[None]]) -> Callable[[Target], None]:
    async def with_loop(target: Target) -> None:
        await story(target)

    return lambda target: asyncio.run(with_loop(target))


STORIES: dict[str, Callable[[Target], Awaitable[None]]] = {
    "produce-consume": partial(produce_consume, {}),
    "idempotent": partial(produce_consume, {"enable_idempotence": True}),
    **{
        f"codec-{codec}": partial(produce_consume, {"compression_type": codec})
        for codec in ("gzip", "snappy", "lz4", "zstd")
    },
    "group": group,
    "transactions": transactions,
    "fenced": fenced,
    "offsets": offsets,
    "topics": topics,
    "groups": groups,
}

if __name__ == "__main__":
    run({name: _alone(story) for name, story in STORIES.items()})

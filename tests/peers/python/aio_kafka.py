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

from peers.python.story import PATIENCE_SECONDS, Place, run, same

_FIRST_MS = 1_700_000_000_000


@asynccontextmanager
async def started(client: Any) -> AsyncIterator[Any]:
    """A client from its start to its end."""
    await client.start()
    try:
        yield client
    finally:
        await (client.close if isinstance(client, AIOKafkaAdminClient) else client.stop)()


def admin(place: Place) -> Any:
    return started(AIOKafkaAdminClient(bootstrap_servers=place.address))


def producer(place: Place, **settings: Any) -> Any:
    return started(AIOKafkaProducer(bootstrap_servers=place.address, **settings))


def consumer(place: Place, *topics: str, **settings: Any) -> Any:
    defaults = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    return started(AIOKafkaConsumer(*topics, bootstrap_servers=place.address, **{**defaults, **settings}))


async def created(place: Place, partitions: int = 1) -> str:
    async with admin(place) as a:
        told = await a.create_topics([NewTopic(place.topic, partitions, 1)])
    same("the code", [each[1] for each in told.topic_errors], [0])
    return place.topic


async def written(place: Place, count: int, partitions: int, **settings: Any) -> list[tuple[int, int]]:
    """Send values 0, 1, ... to partitions in turn; partitions and offsets as they were told."""
    async with producer(place, **settings) as sender:
        sent = [
            await sender.send(
                place.topic,
                str(each).encode(),
                key=b"k%d" % each,
                partition=each % partitions,
                timestamp_ms=_FIRST_MS + each,
                headers=[("n", b"%d" % each)],
            )
            for each in range(count)
        ]
        told = await asyncio.gather(*sent)
    return [(each.partition, each.offset) for each in told]


async def read(reader: AIOKafkaConsumer, count: int) -> list[Any]:
    """Read until so many records have come, and no more come."""
    found: list[Any] = []
    end = time.monotonic() + PATIENCE_SECONDS
    while len(found) < count:
        assert time.monotonic() < end, f"{len(found)} of {count} records"
        found += [each for several in (await reader.getmany(timeout_ms=200)).values() for each in several]
    found += [each for several in (await reader.getmany(timeout_ms=200)).values() for each in several]
    same("records", len(found), count)
    return found


async def whole(place: Place, partitions: int, count: int, **settings: Any) -> list[Any]:
    """All records of a topic, from its start."""
    async with consumer(place, **settings) as reader:
        reader.assign([TopicPartition(place.topic, each) for each in range(partitions)])
        return await read(reader, count)


# --- the stories


async def produce_consume(settings: dict[str, Any], place: Place) -> None:
    await created(place, 3)
    told = await written(place, 3000, 3, **settings)
    same("the offsets", sorted(told), [(part, each) for part in range(3) for each in range(1000)])
    for each in await whole(place, 3, 3000):
        number = b"%d" % (each.offset * 3 + each.partition)
        same("key and value", (each.key, each.value), (b"k" + number, number))
        same("headers and time", (each.headers, each.timestamp), ((("n", number),), _FIRST_MS + int(number)))


async def group(place: Place) -> None:
    topic = await created(place, 4)
    await written(place, 400, 4)
    settings = {"group_id": topic, "heartbeat_interval_ms": 300}
    async with consumer(place, topic, **settings) as first:
        await read(first, 400)
        await first.commit()
        async with consumer(place, topic, **settings) as second:
            await shared("two partitions each", [2, 2], first, second)
            found = [await first.committed(TopicPartition(topic, each)) for each in range(4)]
            same("positions", found, [100] * 4)
            await written(place, 40, 4)
            await asyncio.gather(read(first, 20), read(second, 20))
            await second.commit()
        await shared("all partitions again", [4], first)


async def shared(what: str, counts: list[int], *members: AIOKafkaConsumer) -> None:
    """Ask until the members have so many partitions."""
    end = time.monotonic() + PATIENCE_SECONDS
    while [len(each.assignment()) for each in members] != counts:
        assert time.monotonic() < end, f"not in time: {what}"
        await asyncio.sleep(0.05)


async def transactions(place: Place) -> None:
    topic = await created(place, 2)
    async with producer(place, transactional_id=topic) as sender:
        for each in range(10):
            await sender.begin_transaction()
            for part in range(2):
                await sender.send_and_wait(topic, b"%d" % each, partition=part)
            await sender.send_offsets_to_transaction({TopicPartition(topic, 0): each}, topic)
            await (sender.abort_transaction if each % 2 else sender.commit_transaction)()
    found = await whole(place, 2, 10, isolation_level="read_committed")
    same("values", sorted(each.value for each in found), sorted([b"0", b"2", b"4", b"6", b"8"] * 2))
    await whole(place, 2, 20)
    async with consumer(place, group_id=topic) as reader:
        same("the position", await reader.committed(TopicPartition(topic, 0)), 8)


async def fenced(place: Place) -> None:
    topic = await created(place)
    async with producer(place, transactional_id=topic) as first:
        await first.begin_transaction()
        await first.send_and_wait(topic, b"of the first")
        async with producer(place, transactional_id=topic) as second, second.transaction():
            await second.send_and_wait(topic, b"of the second")
        with suppress(ProducerFenced):
            await first.commit_transaction()
            raise AssertionError("the first producer was not fenced")
    (found,) = await whole(place, 1, 1, isolation_level="read_committed")
    same("the value", found.value, b"of the second")


async def offsets(place: Place) -> None:
    topic = await created(place)
    await written(place, 100, 1)
    part = TopicPartition(topic, 0)
    async with consumer(place, auto_offset_reset="none") as reader:
        reader.assign([part])
        found = (await reader.offsets_for_times({part: _FIRST_MS + 7}))[part]
        same("the offset of a time", (found.offset, found.timestamp), (7, _FIRST_MS + 7))
        same("after all", (await reader.offsets_for_times({part: _FIRST_MS + 100}))[part], None)
        ends = (await reader.beginning_offsets([part]))[part], (await reader.end_offsets([part]))[part]
        same("the ends", ends, (0, 100))
        reader.seek(part, 1000)
        with suppress(OffsetOutOfRangeError):
            await read(reader, 1)
            raise AssertionError("an offset that is out of range was read")


async def topics(place: Place) -> None:
    topic = await created(place, 2)
    async with admin(place) as a:
        with suppress(KafkaError):
            told = await a.create_topics([NewTopic(topic, 2, 1)])
            assert told.topic_errors[0][1] != 0, "it was created twice"
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


async def groups(place: Place) -> None:
    topic = await created(place)
    await written(place, 10, 1)
    async with consumer(place, topic, group_id=topic) as reader, admin(place) as a:
        await read(reader, 10)
        await reader.commit()
        assert topic in [each[0] for each in await a.list_consumer_groups()]
        await a.describe_consumer_groups([topic])
        found = await a.list_consumer_group_offsets(topic)
        same("the position", found[TopicPartition(topic, 0)].offset, 10)


def _alone(story: Callable[[Place], Awaitable[None]]) -> Callable[[Place], None]:
    async def told(place: Place) -> None:
        await story(place)

    return lambda place: asyncio.run(told(place))


STORIES: dict[str, Callable[[Place], Awaitable[None]]] = {
    "produce-consume": partial(produce_consume, {}),
    "idempotent": partial(produce_consume, {"enable_idempotence": True}),
    **{
        f"codec-{each}": partial(produce_consume, {"compression_type": each})
        for each in ("gzip", "snappy", "lz4", "zstd")
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

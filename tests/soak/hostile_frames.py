"""Invalid and hostile frames for a gateway that also serves an honest producer.

Their sources are the schemas of all APIs and versions, and recorded frames of real clients: unchanged, cut, or with
changed bytes or impossible counts. Batches are hostile too, with correct checksums, since others are refused early.
The gateway does not end or hang, leaks no memory or sockets, and logs no traceback. The acknowledged records of the
honest producer exist once and in order.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

from raw_batches import batch, record, with_right_crc

import distlog
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.record_batch import APPEND_TIME, CONTROL, TRANSACTIONAL
from distlog.gateway.apis import APIS
from distlog.gateway.config import GatewayConfig, GroupSettings
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.protocol.messages import FIXED, MessageSchema, SchemaField, request_schema, uvarint
from distlog.gateway.server.request import Request
from soak.gateway_process import GatewayProcess
from soak.tally import Tally, demand, skipped

#: A gateway gets no more frames than this: mutated requests create topics and groups.
_FRAMES_OF_A_GATEWAY = 20_000
_HEALTH_EVERY = 1000
_PATIENCE_S, _ANSWER_S = 60.0, 0.05
_MOST_BYTES, _MOST_SOCKETS = 512 << 20, 40
_HONEST = "honest"
_API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)
_NAMES = ("taped", "taped", "clicks", "g", "", "é", "../x", "a/b", "x" * 300, "\0")
#: The fields of a batch's header: their positions and sizes.
_OF_BATCH = ((0, 8), (8, 4), (12, 4), (16, 1), (21, 2), (23, 4), (27, 8), (35, 8), (43, 8), (51, 2), (53, 4), (57, 4))
_COUNTS = (b"\xff\xff\xff\xff\x7f", b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\xff\xff")


def run(folder: Path, seed: int, *, frames: int = 200_000) -> Tally:
    """Send `frames` frames; Violation if the gateway does not survive them."""
    try:
        taped = _taped(folder / "taped")
    except ModuleNotFoundError:
        return skipped("hostile-frames", "confluent-kafka is not installed")
    tally, chance = Tally(), random.Random(seed)
    for begin in range(0, frames, _FRAMES_OF_A_GATEWAY):
        count = min(_FRAMES_OF_A_GATEWAY, frames - begin)
        tally.update(_round(folder / f"round-{begin}", HostileFrames(chance, taped), count))
    return tally


def _round(folder: Path, hostile: HostileFrames, count: int) -> Tally:
    root = folder / "root"
    for name in (_HONEST, "taped"):
        distlog.create(str(root / name), 2)
    log = folder / "gateway.log"
    gateway = GatewayProcess(str(root), {}, log=log)
    honest = _HonestProducer(gateway.address)
    try:
        client = _Client(gateway.address)
        _send_all(client, [hostile.frame() for _ in range(200)], log)
        bytes_before, sockets_before = gateway.memory_bytes, gateway.open_sockets
        for begin in range(0, count, _HEALTH_EVERY):
            _send_all(client, [hostile.frame() for _ in range(min(_HEALTH_EVERY, count - begin))], log)
        client.close()
        sent = honest.end()
        grown = gateway.memory_bytes - bytes_before
        demand(grown < _MOST_BYTES, f"the gateway has {grown >> 20} MiB more than before")
        _eventually(
            lambda: gateway.open_sockets < sockets_before + _MOST_SOCKETS, "sockets of hostile clients are open"
        )
        gateway.end()
    except BaseException:
        gateway.kill()
        raise
    demand("Traceback" not in log.read_text(), f"the gateway logs a traceback: {log.read_text()[:5000]}")
    topic = distlog.open(str(root / _HONEST))
    stored = [record.value for record in topic.records(partition=0)]
    demand(stored == sent, f"the honest producer sent {len(sent)} records, and {len(stored)} are there")
    return Tally({"frames": count, **client.tally, "records of the honest producer": len(sent)})


def _send_all(client: _Client, frames: Sequence[bytes], log: Path) -> None:
    for frame in frames:
        client.send(frame)
    demand(client.is_served(), f"the gateway does not answer any more: {log.read_text()[-3000:]}")


def _eventually(holds: Any, subject: str) -> None:
    end_s = time.monotonic() + _PATIENCE_S
    while not holds():
        demand(time.monotonic() < end_s, subject)
        time.sleep(0.1)


class _Client:
    """Sends frames, one after the other, and ignores the responses."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._socket = (host, int(port)), None  # type: tuple[str, int], socket.socket | None
        self.tally = Tally()

    def send(self, frame: bytes) -> None:
        """Send a frame, on a new connection if the gateway has closed the last one."""
        if self._socket is None:
            self._socket = socket.create_connection(self._address, timeout=_PATIENCE_S)
        self._socket.settimeout(_ANSWER_S)
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            self._receive(int.from_bytes(self._receive(4), "big"))
            self.tally["answered"] += 1
        except TimeoutError:
            # the request waits for records or members, or has no response
            self.tally["waited"] += 1
            self.close()
        except (OSError, EOFError):
            self.tally["refused"] += 1
            self.close()

    def is_served(self) -> bool:
        """Whether the gateway serves another client."""
        with suppress(OSError), socket.create_connection(self._address, timeout=_PATIENCE_S) as other:
            other.sendall(struct.pack(">i", len(_API_VERSIONS)) + _API_VERSIONS)
            return len(other.recv(4)) > 0
        return False

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _receive(self, size: int) -> bytes:
        data = bytearray()
        assert self._socket is not None
        while len(data) < size:
            part = self._socket.recv(min(size - len(data), 1 << 20))
            if not part:
                raise EOFError
            data += part
        return bytes(data)


class _HonestProducer:
    """An idempotent producer that sends a record now and then, in its own thread."""

    def __init__(self, address: str) -> None:
        import confluent_kafka

        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "enable.idempotence": True, "linger.ms": 5, "log_level": 0}
        )
        self._sent, self._is_over = list[bytes](), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.wait(0.02):
            self._sent.append(f"record {len(self._sent)}".encode())
            self._producer.produce(_HONEST, self._sent[-1], partition=0)

    def end(self) -> list[bytes]:
        self._is_over.set()
        self._thread.join()
        demand(self._producer.flush(_PATIENCE_S) == 0, "records of the honest producer are not acknowledged")
        return self._sent


class HostileFrames:
    """Makes random frames without their lengths."""

    def __init__(self, chance: random.Random, taped: Sequence[bytes]) -> None:
        self._chance, self._taped = chance, taped
        self._versions = [
            (api.key, version) for api in APIS.values() for version in range(api.oldest, api.newest + 1)
        ]

    def frame(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.1:
            return self._produce()
        frame = (
            chance.choice(self._taped) if chance.random() < 0.3 else self._of_schema(*chance.choice(self._versions))
        )
        return self._changed(frame) if chance.random() < 0.7 else frame

    def _produce(self) -> bytes:
        chance, data = self._chance, self._batch()
        head = struct.pack(">hhihhhi", 0, chance.randrange(3, 9), chance.getrandbits(31), -1, -1, 1, 1000)
        return head + struct.pack(">ih5siii", 1, 5, b"taped", 1, chance.randrange(2), len(data)) + data

    def _batch(self) -> bytes:
        chance, codec = self._chance, self._chance.choice((0, 0, *range(1, len(CODEC_NAMES))))
        records = [
            record(number, chance.choice((0, 0, 5, -1, 1 << 62)), b"k", chance.randbytes(chance.choice((0, 9, 500))))
            for number in range(chance.choice((1, 3, 50)))
        ]
        section = bytearray(compress(codec, b"".join(records)))
        for position in chance.choices(range(len(section)), k=chance.choice((0, 0, 1, 3))):
            section[position] = chance.getrandbits(8)
        count = chance.choice((len(records), len(records), len(records), 1 << 20, (1 << 31) - 1))
        attributes = codec | chance.choice((0, 0, 0, APPEND_TIME, TRANSACTIONAL, CONTROL))
        changed = bytearray(
            batch(records, count=count, last_delta=count - 1, attributes=attributes, section=bytes(section))
        )
        for offset, size in chance.choices(_OF_BATCH, k=chance.choice((0, 1, 2))):
            fill = chance.choice((b"\x7f" + b"\xff" * 7, b"\x80" + bytes(7), b"\xff" * 8, chance.randbytes(8)))
            changed[offset : offset + size] = fill[:size]
        return with_right_crc(bytes(changed))

    def _of_schema(self, api_key: int, version: int) -> bytes:
        schema = request_schema(api_key, version)
        head = struct.pack(">hhih", api_key, version, self._chance.getrandbits(31), -1)
        return head + (self._tags() if schema.is_head_flexible else b"") + self._message(schema.body)

    def _message(self, message: MessageSchema) -> bytes:
        data = b"".join(self._field(field, message.is_flexible) for field in message.fields if field.tag is None)
        return data + (self._tags() if message.is_flexible else b"")

    def _field(self, field: SchemaField, is_flexible: bool) -> bytes:
        if field.is_array:
            if self._chance.random() < 0.05:
                return uvarint(0) if is_flexible else struct.pack(">i", -1)
            count = self._chance.choice((0, 1, 1, 2, 3))
            items = b"".join(self._item(field, is_flexible) for _ in range(count))
            return (uvarint(count + 1) if is_flexible else struct.pack(">i", count)) + items
        return self._item(field, is_flexible)

    def _item(self, field: SchemaField, is_flexible: bool) -> bytes:
        if field.message is not None:
            return self._message(field.message)
        chance, kind = self._chance, field.kind
        if kind in FIXED:
            size = struct.calcsize(">" + FIXED[kind])
            usual = chance.choice((0, 0, 1, 1, 2, 3, 100, -1)).to_bytes(size, "big", signed=True)
            return usual if chance.random() < 0.9 else chance.choice((b"\x7f" + b"\xff" * (size - 1), b"\x80" * size))
        if kind == "uuid":
            return chance.choice((bytes(16), chance.randbytes(16)))
        if chance.random() < 0.05:
            return uvarint(0) if is_flexible else struct.pack(">h" if kind == "string" else ">i", -1)
        data = chance.choice(_NAMES).encode() if kind == "string" else chance.randbytes(chance.choice((0, 5, 100)))
        size = len(data)
        return (uvarint(size + 1) if is_flexible else struct.pack(">h" if kind == "string" else ">i", size)) + data

    def _tags(self) -> bytes:
        chance = self._chance
        if chance.random() < 0.8:
            return b"\0"
        tags = [uvarint(chance.choice((0, 1, 5, 9000))) + uvarint(3) + chance.randbytes(3) for _ in range(2)]
        return uvarint(len(tags)) + b"".join(tags)

    def _changed(self, frame: bytes) -> bytes:
        chance, cut = self._chance, self._chance.randrange(4, max(len(frame), 5))
        match chance.randrange(5):
            case 0:
                return frame[:cut]
            case 1:
                return frame + chance.randbytes(chance.choice((1, 20)))
            case 2:
                count = chance.choice(_COUNTS)
                return frame[:cut] + count + frame[cut + chance.choice((0, len(count))) :]
            case _:
                changed = bytearray(frame)
                for position in (cut, *chance.choices(range(4, max(len(frame), 5)), k=2)):
                    changed[min(position, len(frame) - 1)] = chance.getrandbits(8)
                return bytes(changed)


def _taped(root: Path) -> list[bytes]:
    """Record the frames of producers, a group consumer and an admin client; none names the honest topic."""
    import confluent_kafka
    from confluent_kafka import admin

    distlog.create(str(root / "taped"), 2)
    frames, read = list[bytes](), Request.read

    def taping(request: Request, *bounds: int) -> None:
        if request.frame is not None:
            frames.append(bytes(request.frame))
        read(request, *bounds)

    config = GatewayConfig(groups=GroupSettings(initial_rebalance_delay_ms=0))
    with patch.object(Request, "read", taping), GatewayServer(str(root), port=0, config=config) as gateway:
        common = {"bootstrap.servers": gateway.address, "log_level": 0}
        producer = confluent_kafka.Producer({**common, "transactional.id": "taped", "compression.type": "lz4"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for number in range(20):
            producer.produce("taped", b"v" * number, key=b"k")
        consumer = confluent_kafka.Consumer({**common, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["taped"])
        producer.send_offsets_to_transaction(
            [confluent_kafka.TopicPartition("taped", 0, 1)], consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)
        demand(consumer.poll(60) is not None, "nothing was read to be taped")
        consumer.commit(asynchronous=False)
        consumer.close()
        client = admin.AdminClient(common)
        client.list_topics(timeout=60)
        resource = admin.ConfigResource(admin.ConfigResource.Type.TOPIC, "taped")
        futures = [
            *client.describe_configs([resource]).values(),
            *client.describe_consumer_groups(["g"]).values(),
            *client.create_topics([admin.NewTopic("new", 1, 1)]).values(),
            *client.create_partitions([admin.NewPartitions("taped", 3)]).values(),
            client.list_consumer_groups(),
            *client.delete_topics(["new"]).values(),
        ]
        for future in futures:
            with suppress(confluent_kafka.KafkaException):
                future.result(60)
    return frames

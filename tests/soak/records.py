"""The records of the campaigns, with their writers, and the files of acknowledgements."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

import distlog
from distlog.core.times import now_ms
from soak.tally import demand

KEYS = 40
_ACK = struct.Struct("<IQQI")


class Ack(NamedTuple):
    """`count` records from `offset` on, which their writer numbers from `first` on."""

    partition: int
    offset: int
    first: int
    count: int


def record(writer: str, number: int) -> dict[str, Any]:
    text = f"{writer} {number} "
    return {
        "timestamp": now_ms(),
        "key": b"%d" % (number * 7919 % KEYS),
        "value": text.encode() + bytes(number * 31 % 200),
    }


def writer_of(value: bytes) -> tuple[str, int]:
    """Return the writer and the number of a record; raises Violation if it is incomplete."""
    writer, number, _ = value.split(b" ", 2)
    name, count = writer.decode(), int(number)
    demand(value == record(name, count)["value"], f"record {count} of {name} differs from the written one")
    return name, count


def open_acks(path: Path) -> int:
    """Open the file of a writer's acknowledgements, which survives it."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)


def acknowledge(file: int, ack: Ack) -> None:
    os.write(file, _ACK.pack(*ack))


class Acks:
    """The acknowledgements in `folder`; each `new` returns those since the previous call."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[str, int] = {}

    def new(self) -> Iterator[tuple[str, Ack]]:
        with os.scandir(self._folder) as entries:
            sizes = {entry.name: entry.stat().st_size for entry in entries if entry.name.endswith(".acks")}
        for name, size in sorted(sizes.items()):
            begin, path = self._read.get(name, 0), self._folder / name
            if size <= begin:
                continue  # most of the writers are dead
            with path.open("rb") as file:
                file.seek(begin)
                data = file.read()
            size = len(data) // _ACK.size * _ACK.size
            self._read[name] = begin + size
            for fields in _ACK.iter_unpack(data[:size]):
                yield path.stem, Ack(*fields)


def read_records(topic: distlog.Topic, partition: int, start: int) -> list[tuple[int, bytes, bytes]]:
    """Return (offset, key, value) of the partition's records from `start` on, in the topic's snapshot."""
    scan = topic.scan(partitions=[partition], start={partition: start}, columns=["offset", "key", "value"])
    table: pa.Table = scan.to_table()
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

"""Reads compressed logs chunk by chunk: each chunk is fetched and decompressed once, while it is wanted."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from distlog.core.batches.compression import ZSTD, decompress
from distlog.core.errors import CorruptRecordError
from distlog.core.locks import ProcessLock
from distlog.core.storage.storage import Storage
from distlog.core.storage.task import Task
from distlog.core.tiered.chunk_index import ChunkIndex

#: How many bytes of chunks are kept that a read ended in, since the next one begins there; at least KEPT_CHUNKS.
KEPT_BYTES = 32 << 20
KEPT_CHUNKS = 2

#: A chunk: the name of the object, and its number there.
Key = tuple[str, int]
Chunks = dict[Key, memoryview]


@dataclass(frozen=True, slots=True)
class ChunkedRange:
    """Bytes [start, end) of the log that lies in the object `name`."""

    name: str
    chunks: ChunkIndex
    start: int
    end: int

    @property
    def keys(self) -> list[Key]:
        """The chunks that hold the bytes."""
        return [(self.name, number) for number in self.chunks.numbers(self.start, self.end)]

    def cut(self, key: Key, data: memoryview) -> memoryview:
        """The wanted bytes of a chunk."""
        begin = self.chunks.start(key[1])
        return data[max(self.start - begin, 0) : self.end - begin]


class ChunkReader:
    """The compressed logs in `bucket`; safe between threads, which share what they fetch at the same time."""

    def __init__(self, bucket: Storage) -> None:
        self._bucket, self._lock, self._process = bucket, ProcessLock(), os.getpid()
        self._begun: dict[Key, Task[Chunks]] = {}
        self._kept: OrderedDict[Key, memoryview] = OrderedDict()

    def read(self, ranges: Sequence[ChunkedRange]) -> list[memoryview]:
        """The bytes of each range. The chunks that are not there yet are fetched together.

        Raises CorruptRecordError for a chunk that is not what its manifest says, StorageError, FileNotFoundError.
        """
        wanted = {key: each for each in ranges for key in each.keys}
        chunks, tasks, mine = self._taken(wanted)
        try:
            for task in tasks:
                chunks |= task.wait()
        finally:
            self._keep(ranges, chunks, mine)
        return [_joined([each.cut(key, chunks[key]) for key in each.keys]) for each in ranges]

    def _taken(self, wanted: dict[Key, ChunkedRange]) -> tuple[Chunks, list[Task[Chunks]], list[Key]]:
        """The chunks that are here, the tasks that get the others, and those that this call has begun."""
        with self._lock:
            if self._process != os.getpid():
                # what the parent's threads fetch does not come here
                self._process, self._begun = os.getpid(), {}
            chunks = {key: self._kept[key] for key in wanted if key in self._kept}
            tasks = {id(task): task for key in wanted if (task := self._begun.get(key))}
            mine = [key for key in wanted if key not in chunks and key not in self._begun]
            if mine:
                task = Task(partial(self._fetched, [(key, wanted[key].chunks) for key in mine]))
                self._begun |= dict.fromkeys(mine, task)
                tasks[id(task)] = task
            return chunks, list(tasks.values()), mine

    def _keep(self, ranges: Iterable[ChunkedRange], chunks: Chunks, mine: Iterable[Key]) -> None:
        with self._lock:
            for key in mine:
                self._begun.pop(key, None)
            for each in ranges:
                for key in each.keys[-1:]:
                    if key in chunks:
                        self._kept[key] = chunks[key]
                        self._kept.move_to_end(key)
            while len(self._kept) > KEPT_CHUNKS and sum(map(len, self._kept.values())) > KEPT_BYTES:
                self._kept.popitem(last=False)

    def _fetched(self, wanted: Sequence[tuple[Key, ChunkIndex]]) -> Chunks:
        places = [(name, *_place(chunks, number)) for (name, number), chunks in wanted]
        stored = self._bucket.read_ranges(places)
        return {
            key: _decompressed(data, chunks.start(key[1] + 1) - chunks.start(key[1]), place)
            for (key, chunks), data, place in zip(wanted, stored, places, strict=True)
        }


def _place(chunks: ChunkIndex, number: int) -> tuple[int, int]:
    """The bytes of the object that hold a chunk."""
    assert chunks.ends is not None
    return int(chunks.ends[number]), int(chunks.ends[number + 1])


def _decompressed(data: memoryview, size: int, place: tuple[str, int, int]) -> memoryview:
    name, position, _ = place
    try:
        found = decompress(ZSTD, data, limit=size)
    except CorruptRecordError as error:
        text = f"a chunk of a remote segment does not decompress: {error.message}"
        raise CorruptRecordError(text, file=name, position=position) from None
    if len(found) != size:
        text = "a chunk of a remote segment has not the size that its manifest says"
        raise CorruptRecordError(text, file=name, position=position, size=len(found), expected=size)
    return found.toreadonly()


def _joined(parts: Sequence[memoryview]) -> memoryview:
    return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

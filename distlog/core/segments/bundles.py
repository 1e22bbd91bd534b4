"""Bundles: objects that hold the small segments of many partitions, one per task of an append.

A segment costs two files otherwise, and each file a request or a sync. A bundle has the logs, by partition, and then
their indexes; each part is what its file would be. On a disk each log begins at a page. A bundle has one segment of a
partition, and all have its stem. If segments roll within an append, the next ones go to the next bundle: so retention
can let go of a long load in pieces.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlog.core import paths
from distlog.core.buffers import PAGE_BYTES
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.segments.index_facts import INDEX_FIELDS
from distlog.core.storage.storage import Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A larger log gets files of its own: it is worth its requests, and need not be held in memory.
LARGEST_PART = 8 << 20
#: About the size of the largest bundle. All parts are held until it is written, so it bounds the memory of an append.
LARGEST_BUNDLE = 128 << 20
#: A larger bundle is streamed: past the page cache of a disk, or as a multipart upload of 8 MiB a request.
_PUT_BYTES = 16 << 20

#: The fields of SegmentInfo that say where a part is, by the suffix that its file would have.
_PLACES = {".log": "log_position"} | {suffix: one.position for suffix, one in INDEX_FIELDS.items() if one.position}


@dataclasses.dataclass(frozen=True, slots=True)
class _Bundle:
    """The parts of one bundle, by partition and then by suffix; each is the pieces that it is made of."""

    stem: str
    segments: dict[int, Mapping[str, Sequence[Buffer]]] = dataclasses.field(default_factory=dict)


class Bundles:
    """Gathers the segments of one append, and writes their bundles; for many threads. `new_stem` makes their stems.

    Bundles are unreferenced until a commit adds their segments.
    """

    def __init__(self, storage: Storage, new_stem: Callable[[], str]) -> None:
        self._storage, self._new_stem = storage, new_stem
        self._partitions: set[int] = set()
        self._waiting: list[_Bundle] = []
        self._held = self._sealed = 0
        self._placed: dict[tuple[int, str], dict[str, Any]] = {}
        self._lock = threading.Lock()

    def join(self, partition: int) -> None:
        """Note that the append meets this partition. One that meets a single partition makes no bundle."""
        self._partitions.add(partition)

    @property
    def is_shared(self) -> bool:
        """Whether there are several partitions to share a bundle."""
        return len(self._partitions) > 1

    def takes(self, log_bytes: int) -> bool:
        """Whether a segment that is still written, of so many bytes, may be held for a bundle."""
        return self.is_shared and log_bytes <= LARGEST_PART and self._held <= LARGEST_BUNDLE

    def hold(self, change: int) -> None:
        """Note that segments being written hold so many bytes more, or, if negative, fewer."""
        with self._lock:
            self._held += change

    def add(self, partition: int, log: Sequence[Buffer], indexes: Mapping[str, bytes]) -> str:
        """Take the pieces of a segment's log, and its indexes by suffix, to write later; returns the segment's stem.

        Full bundles are written now. Raises StorageError.
        """
        parts = {".log": log, **{suffix: [data] for suffix, data in indexes.items() if data}}
        with self._lock:
            bundle = next((one for one in self._waiting if partition not in one.segments), None)
            if bundle is None:
                bundle = _Bundle(self._new_stem())
                self._waiting.append(bundle)
            bundle.segments[partition] = parts
            self._sealed += sum(map(_size, parts.values()))
            if self._sealed > LARGEST_BUNDLE:
                self._write_waiting()
            return bundle.stem

    def close(self) -> None:
        """Write what is left, and make it durable; raises StorageError."""
        with self._lock:
            self._write_waiting()

    def placed(self, segment: SegmentInfo) -> SegmentInfo:
        """The segment with the positions of its parts, after `close`."""
        return dataclasses.replace(segment, **self._placed.get((segment.partition, segment.stem), {}))

    def _write_waiting(self) -> None:
        waiting, self._waiting, self._sealed = self._waiting, [], 0
        for bundle in waiting:
            _write(self._storage, paths.bundle_file(bundle.stem), list(self._pieces(bundle)))

    def _pieces(self, bundle: _Bundle) -> Iterator[Buffer]:
        """The bytes of a bundle; notes the position of each part."""
        page = PAGE_BYTES if self._storage.is_local else 1
        position = 0
        for partition, suffix, pieces in _in_order(bundle):
            gap = -position % page if suffix == ".log" else 0
            place = self._placed.setdefault((partition, bundle.stem), {})
            place[_PLACES[suffix]] = position + gap
            position += gap + _size(pieces)
            yield bytes(gap)
            yield from pieces


def _in_order(bundle: _Bundle) -> Iterator[tuple[int, str, Sequence[Buffer]]]:
    """(partition, suffix, pieces) of each part: the logs first."""
    segments = sorted(bundle.segments.items())
    yield from ((number, ".log", parts[".log"]) for number, parts in segments)
    for number, parts in segments:
        yield from ((number, suffix, pieces) for suffix, pieces in parts.items() if suffix != ".log")


def _size(pieces: Sequence[Buffer]) -> int:
    return sum(memoryview(piece).nbytes for piece in pieces)


def _write(storage: Storage, name: str, pieces: Sequence[Buffer]) -> None:
    if _size(pieces) <= _PUT_BYTES:
        storage.put(name, b"".join(pieces))
        return
    with storage.open_write(name) as writer:
        for piece in pieces:
            writer.write_behind(piece)

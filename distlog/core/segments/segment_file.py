"""Writes one segment to storage: holds or streams the log, gathers its indexes, and describes it at the end."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distlog.core import paths
from distlog.core.batches.base_offsets import header_offsets, write_base_offsets
from distlog.core.commits.format.segment_info import NO_OFFSET, SegmentInfo
from distlog.core.config import MAX_INT, TopicConfig
from distlog.core.segments.bundles import Bundles
from distlog.core.segments.log_description import LogDescription
from distlog.core.storage.storage import ObjectWriter, Storage

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: A log file up to this size is held in memory, and put together with its index files; a larger one is streamed.
HELD_BYTES = 1 << 20
#: A piece of so many bytes is held for a bundle without a copy; a smaller one may be a small part of its memory.
KEPT_BYTES = 1 << 18


class SegmentFile:
    """A new segment that is written as if it began at offset 0; holds HELD_BYTES, or what its stream holds.

    It becomes files, or a part of `bundles`, which may hold more. All are unreferenced until a commit adds them.
    """

    def __init__(
        self,
        storage: Storage,
        topic: str,
        partition: int,
        stem: str,
        config: TopicConfig,
        bundles: Bundles | None = None,
    ) -> None:
        self._storage, self._topic, self._partition, self._stem = storage, topic, partition, stem
        self._segment_bytes = config.segment_size
        self._log = LogDescription(interval_bytes=config.index_interval_bytes, index_bytes=config.segment_index_bytes)
        self._bundles = bundles
        self._held: list[Buffer] = []
        self._stream: ObjectWriter | None = None

    @property
    def size(self) -> int:
        """The bytes of the log so far."""
        return self._log.size

    @property
    def is_uploading(self) -> bool:
        """Whether the log is too large to be held."""
        return self._stream is not None

    @property
    def next_offset(self) -> int:
        """The offset behind the last batch."""
        return self._log.next_offset

    def room(self, batches: npt.NDArray[Any], base_offsets: npt.NDArray[np.int64]) -> int:
        """How many of `batches`, at `base_offsets`, still fit into the segment.

        Its limits are `segment.bytes`, offsets within an int32, and `segment.index.bytes` for each index. The first
        batch of a segment always fits into the indexes.
        """
        sizes = self.size + np.cumsum(batches["size"])
        fits = (sizes <= self._segment_bytes) & (base_offsets + batches["last_offset_delta"] <= MAX_INT)
        room = int(fits.argmin() if not fits.all() else len(fits))
        return min(room, self._log.room(batches[:room]))

    def write(
        self,
        data: npt.NDArray[np.uint8],
        batches: npt.NDArray[Any],
        base_offsets: npt.NDArray[np.int64],
        newest_offsets: npt.NDArray[np.int64],
        min_timestamps: npt.NDArray[np.int64],
    ) -> None:
        """Append `batches` (BATCH rows, positions in `data`), which are all of `data`, at `base_offsets`.

        The base offsets in `data` are overwritten. They ascend; gaps are allowed. `newest_offsets` and
        `min_timestamps` are those of `fold`. `data` must not change until the next call returns; with bundles, never.
        """
        write_base_offsets(data, batches["position"], header_offsets(batches, base_offsets))
        moved = batches.copy()
        moved["base_offset"] = base_offsets
        self._log.add(data, moved, newest_offsets, min_timestamps)
        self._store(data.data)

    def _store(self, data: memoryview) -> None:
        if self._stream is None and self.size > HELD_BYTES and not (self._bundles and self._bundles.takes(self.size)):
            self._stream = self._storage.open_write(self._name(".log"))
            for piece in self._let_go():
                self._stream.write_behind(piece)
        if self._stream is not None:
            self._stream.write_behind(data)
            return
        if self._bundles:
            self._bundles.hold(len(data))
        is_kept = self._bundles is not None and len(data) >= KEPT_BYTES
        self._held.append(data if is_kept else bytes(data))

    def _let_go(self) -> list[Buffer]:
        """The pieces that were held until now."""
        held, self._held = self._held, []
        if self._bundles:
            self._bundles.hold(-sum(memoryview(piece).nbytes for piece in held))
        return held

    def seal(self, now_ms: int) -> SegmentInfo:
        """Make the files durable and describe them; a part of a bundle is not durable before that is.

        Raises CorruptRecordError for a batch with an unknown codec.
        """
        described, files = self._log.describe(self._partition, self._stem, now_ms)
        if self._stream is None and self._bundles and self._bundles.is_shared:
            stem = self._bundles.add(self._partition, self._let_go(), files)
            return dataclasses.replace(described, stem=stem, first_unstable_offset=NO_OFFSET)
        if self._stream is None:
            files[".log"] = b"".join(self._let_go())
        else:
            self._stream.close()
        self._storage.put_many({self._name(suffix): data for suffix, data in files.items() if data})
        return dataclasses.replace(described, first_unstable_offset=NO_OFFSET)

    def abort(self) -> None:
        """Abort; what was written stays unreferenced."""
        if self._stream is not None:
            self._stream.abort()

    def _name(self, suffix: str) -> str:
        return paths.segment_file(self._topic, self._partition, self._stem, suffix)

"""Kafka's fetch: the stored batches from an offset on, with the base offsets that readers must see."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distlog.core.chunk import Chunk
from distlog.core.segment import SegmentReader
from distlog.core.slices import SegmentSlice


@dataclass(frozen=True, slots=True)
class FetchedBatches:
    """Whole record batches, back to back; `bytes(batches)` is what a Kafka broker would answer.

    `base_offsets[i]` belongs in the first 8 bytes of the batch at `positions[i]` of `data`; they lie outside the
    checksum. `next_offset` is where to fetch next. `path` is the local file that `data` was mapped from, at
    `file_position`, or None.
    """

    data: memoryview
    positions: npt.NDArray[np.int64]
    base_offsets: npt.NDArray[np.int64]
    next_offset: int
    moved: bool
    path: str | None
    file_position: int

    def __len__(self) -> int:
        return len(self.data)

    def __bytes__(self) -> bytes:
        if not self.moved:
            return bytes(self.data)
        data = np.frombuffer(self.data, np.uint8).copy()
        data[self.positions[:, None] + np.arange(8)] = self.base_offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
        return data.tobytes()

    def send_to(self, receiver: socket.socket) -> int:
        """Send the batches to a connected socket, from the page cache (sendfile) where the file is local.

        Returns the number of bytes sent. Raises OSError when the connection breaks.
        """
        if self.path is None:
            receiver.sendall(bytes(self))
            return len(self)
        file = os.open(self.path, os.O_RDONLY)
        try:
            for start, end, prefix in self._parts():
                receiver.sendall(prefix)
                _send_file(receiver, file, self.file_position + start, end - start)
        finally:
            os.close(file)
        return len(self)

    def _parts(self) -> Iterator[tuple[int, int, bytes]]:
        """(start, end, the bytes to be sent before [start, end) of the file)."""
        if not self.moved:
            yield 0, len(self.data), b""
            return
        ends = [*self.positions[1:].tolist(), len(self.data)]
        for start, end, base in zip(self.positions.tolist(), ends, self.base_offsets.tolist(), strict=True):
            yield start + 8, end, base.to_bytes(8, "big")


def _send_file(receiver: socket.socket, file: int, position: int, size: int) -> None:
    while size > 0:
        sent = os.sendfile(receiver.fileno(), file, position, size)
        if sent == 0:
            raise OSError(f"the log file ended while it was sent, {size} bytes short")
        position, size = position + sent, size - sent


def fetch(reader: SegmentReader, piece: SegmentSlice | None, offset: int, max_bytes: int) -> FetchedBatches:
    """Whole batches of one segment from the batch that holds `offset` on; none when there is no `piece`.

    As many as fit into `max_bytes`, at least one (`LogSegment.read` with minOneMessage). Every CRC is checked:
    CorruptRecordError.
    """
    taken = _take(reader, piece, max_bytes) if piece else []
    if not piece or not taken:
        none = np.zeros(0, np.int64)
        return FetchedBatches(memoryview(b""), none, none, offset, False, None, 0)
    starts = np.cumsum([0] + [len(chunk.data) for chunk in taken])
    batches = np.concatenate([chunk.batches for chunk in taken])
    positions = [chunk.batches["position"] + start for chunk, start in zip(taken, starts[:-1], strict=True)]
    last = batches[-1]
    shift = piece.segment.shift
    local = reader.storage.is_local
    return FetchedBatches(
        data=taken[0].data if len(taken) == 1 else memoryview(b"".join([chunk.data for chunk in taken])),
        positions=np.concatenate(positions),
        base_offsets=batches["base_offset"] + shift,
        next_offset=int(last["base_offset"] + last["last_offset_delta"]) + 1 + shift,
        moved=shift != 0,
        path=reader.storage.local_path(reader.name(piece.segment)) if local else None,
        file_position=taken[0].pieces[0].file_position,
    )


def _take(reader: SegmentReader, piece: SegmentSlice, max_bytes: int) -> list[Chunk]:
    taken: list[Chunk] = []
    room = max_bytes
    for chunk in reader.chunks(piece):
        chunk.check()
        ends = chunk.batches["position"] + chunk.batches["size"]
        count = max(int(np.searchsorted(ends, room, side="right")), 0 if taken else 1)
        if count:
            taken.append(chunk.first(count))
            room -= len(taken[-1].data)
        if count < len(chunk.batches) or room <= 0:
            break
    return taken

"""Kafka's small text files: checkpoints of offsets and of leader epochs, and `partition.metadata`.

A checkpoint (`CheckpointFile`) has a line each for the version, 0, for the number of entries, and for each entry:
`<topic> <partition> <offset>`, or `<epoch> <start offset>` in a leader-epoch-checkpoint.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import uuid
from collections.abc import Iterable, Mapping, Sequence

from distlog.core.config import MAX_INT, MAX_LONG
from distlog.core.errors import CorruptMetadataError
from distlog.core.kafka_directory.directory_names import PartitionName

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
FIRST_DIRTY_OFFSETS = "cleaner-offset-checkpoint"
_VERSION = "0"

#: (leader epoch, its first offset), ascending.
Epochs = Sequence[tuple[int, int]]


def read_offsets(data: bytes, *, file: str = "") -> dict[PartitionName, int]:
    """The offsets in a checkpoint file, by partition. Raises CorruptMetadataError for a file that is not whole."""
    offsets = dict[PartitionName, int]()
    for line in _entries(data, 3, file):
        topic, partition, offset = line
        offsets[PartitionName(topic, _number(partition, MAX_INT, file))] = _number(offset, MAX_LONG, file)
    return offsets


def write_offsets(offsets: Mapping[PartitionName, int]) -> bytes:
    """The content of a checkpoint file."""
    return _text(f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items()))


def read_epochs(data: bytes, *, file: str = "") -> Epochs:
    """The entries of a leader-epoch-checkpoint. Raises CorruptMetadataError for a file that is not whole."""
    return [
        (_number(epoch, MAX_INT, file), _number(start, MAX_LONG, file)) for epoch, start in _entries(data, 2, file)
    ]


def write_epochs(epochs: Epochs) -> bytes:
    """The content of a leader-epoch-checkpoint."""
    return _text(f"{epoch} {start}" for epoch, start in epochs)


def joined_epochs(parts: Iterable[Iterable[tuple[int, int]]], log_start_offset: int) -> list[tuple[int, int]]:
    """The leader epochs of a log from those of its segments, as a leader-epoch-checkpoint has them."""
    epochs = list[tuple[int, int]]()
    for epoch, start in itertools.chain.from_iterable(parts):
        if not epochs or epoch > epochs[-1][0]:
            epochs.append((epoch, start))
    below = [epoch for epoch, start in epochs if start < log_start_offset]
    kept = [(epoch, start) for epoch, start in epochs if start >= log_start_offset]
    if below and (not kept or kept[0][1] > log_start_offset):
        kept.insert(0, (below[-1], log_start_offset))
    return kept


def read_topic_id(data: bytes, *, file: str = "") -> uuid.UUID:
    """The topic's id in a `partition.metadata`. Raises CorruptMetadataError."""
    lines = [line.partition(": ")[2] for line in data.decode("utf-8", "replace").splitlines()[:2]]
    try:
        found = uuid.UUID(bytes=base64.urlsafe_b64decode(lines[1] + "=="))
    except (IndexError, ValueError, binascii.Error):
        raise _malformed(file) from None
    if found.int == 0:
        raise _malformed(file)
    return found


def write_topic_id(topic_id: uuid.UUID) -> bytes:
    """The content of a `partition.metadata`; there is no end of line behind it, as in Kafka."""
    return b"version: 0\ntopic_id: " + base64.urlsafe_b64encode(topic_id.bytes).rstrip(b"=")


def _text(lines: Iterable[str]) -> bytes:
    entries = list(lines)
    return "".join(f"{line}\n" for line in (_VERSION, len(entries), *entries)).encode()


def _entries(data: bytes, tokens: int, file: str) -> list[list[str]]:
    lines = data.decode("utf-8", "replace").splitlines()
    if len(lines) < 2 and lines[:1] in ([], [_VERSION]):
        return []
    entries = [line.split() for line in lines[2:]]
    if lines[0] != _VERSION or _number(lines[1], MAX_INT, file) != len(entries):
        raise _malformed(file)
    if any(len(entry) != tokens for entry in entries):
        raise _malformed(file)
    return entries


def _number(text: str, largest: int, file: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20) or int(text) > largest:
        raise _malformed(file)
    return int(text)


def _malformed(file: str) -> CorruptMetadataError:
    return CorruptMetadataError("this file of a broker is malformed: restore it, or delete it", file=file or None)

"""Dumps the small files of a partition: aborted transactions, producers, leader epochs."""

from __future__ import annotations

import numpy as np

from distlog.core.config import MAX_INT
from distlog.core.dump.dumped_file import DumpedFile
from distlog.core.dump.line import Line, number, optional
from distlog.core.dump.output import DumpOutput
from distlog.core.errors import CorruptMetadataError, UnsupportedVersionError
from distlog.core.indexes.transaction_index import ENTRY, VERSION
from distlog.core.kernels.dump_lines import ABSENT
from distlog.core.transactions.producer_snapshot import read_producer_snapshot

_ABORTED = ("version", "producerId", "firstOffset", "lastOffset", "lastStableOffset")
ABORTED = Line("abortedTransaction", tuple(number(name) for name in _ABORTED))
_PRODUCER = (
    *(number(name) for name in ("producerId", "producerEpoch", "coordinatorEpoch")),
    optional("currentTxnFirstOffset"),
    number("lastTimestamp"),
)
_LAST_BATCH = tuple(
    number(name) for name in ("firstSequence", "lastSequence", "lastOffset", "offsetDelta", "timestamp")
)
PRODUCER = Line("producer", (*_PRODUCER, *_LAST_BATCH))
#: A producer of whom no batch is known. Kafka's line ends with a space.
PRODUCER_WITHOUT_BATCH = Line("producer", _PRODUCER, end=" \n")
EPOCH = Line("leaderEpoch", (number("epoch"), number("startOffset")))


def dump_transaction_index(file: DumpedFile, output: DumpOutput) -> None:
    """Write the aborted transactions in a `.txnindex` file; raises UnsupportedVersionError for a later version."""
    data = file.storage.read(file.name)
    entries = np.frombuffer(data[: len(data) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
    later = np.flatnonzero(entries["version"] >> 8 > VERSION)
    known = entries[: later[0]] if len(later) else entries
    columns = {name: known[field].astype(np.int64) for name, field in zip(_ABORTED, ENTRY.names or (), strict=True)}
    output.lines(ABORTED, columns | {"version": columns["version"] >> 8})
    if len(later):
        text = "an aborted transaction has a version that is not known: a newer Kafka may have written it"
        raise UnsupportedVersionError(text, file=file.path, position=int(later[0]) * ENTRY.itemsize)


def dump_producers(file: DumpedFile, output: DumpOutput) -> None:
    """Write the producers in a `.snapshot` file; raises CorruptIndexError if it is damaged."""
    entries = read_producer_snapshot(file.storage.read(file.name), file=file.path)
    first_offset, epoch = entries["transaction_first_offset"], entries["coordinator_epoch"]
    columns = {
        "producerId": entries["producer_id"],
        "producerEpoch": entries["producer_epoch"],
        "coordinatorEpoch": epoch,
        "currentTxnFirstOffset": np.where(first_offset >= 0, first_offset, ABSENT),
        "lastTimestamp": entries["last_timestamp"],
        "firstSequence": (entries["last_sequence"].astype(np.int64) - entries["offset_delta"]) & MAX_INT,
        "lastSequence": entries["last_sequence"],
        "lastOffset": entries["last_offset"],
        "offsetDelta": entries["offset_delta"],
        "timestamp": entries["last_timestamp"],
    }
    for row, has_batch in enumerate(entries["last_offset"] >= 0):
        line = PRODUCER if has_batch else PRODUCER_WITHOUT_BATCH
        output.lines(line, {name: values[row : row + 1] for name, values in columns.items()})


def dump_leader_epochs(file: DumpedFile, output: DumpOutput) -> None:
    """Write the epochs in a `leader-epoch-checkpoint` file; raises CorruptMetadataError if it is malformed.

    It is text: a version (0), the number of entries, and an entry in each line, epoch and start offset.
    """
    try:
        lines = file.storage.read(file.name).decode().splitlines()
        entries = [[int(word) for word in line.split()] for line in lines[2:]]
        if lines and (int(lines[0]) != 0 or int(lines[1]) != len(entries) or {*map(len, entries)} - {2}):
            raise ValueError("its version is not 0, or its entries are not as many as it says")
    except (ValueError, IndexError) as error:
        raise CorruptMetadataError(f"this is no checkpoint of leader epochs: {error}", file=file.path) from None
    epochs, offsets = zip(*entries, strict=True) if entries else ((), ())
    output.lines(EPOCH, {"epoch": np.array(epochs, np.int64), "startOffset": np.array(offsets, np.int64)})

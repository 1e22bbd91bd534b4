"""Makes transaction indexes anew, and says where they lack aborted transactions, from the logs of a partition.

A transaction may begin in an earlier segment than it ends, so one segment's log does not tell its index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import numpy as np
from crc32c import crc32c

from distlog.core.commits.format.segment_info import NOT_LOOKED, SegmentInfo
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import CorruptionError, SnapshotTooOldError
from distlog.core.indexes.transaction_index import ENTRY, AbortedTransaction, encode_transactions
from distlog.core.maintenance.integrity.anomalies import Anomaly
from distlog.core.maintenance.integrity.rebuild_report import SegmentRebuild
from distlog.core.maintenance.integrity.verify_segment import SegmentVerdict
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.stable_offset import SegmentTransactions, transactional_segments, transactions_of
from distlog.core.segments.index_facts import index_size

_SUFFIX = ".txnindex"


def complete_index(present: bytes, aborted: Iterable[AbortedTransaction]) -> bytes:
    """The right content of a transaction index whose sound file holds `present`, when its log aborts `aborted`.

    A file that names all of these is right, even if it names more: the data of the others was compacted away.
    """
    needed = list(aborted)
    entries = np.frombuffer(present[: len(present) // ENTRY.itemsize * ENTRY.itemsize], ENTRY)
    named = set(zip(entries["producer_id"].tolist(), entries["last_offset"].tolist(), strict=True))
    if named.issuperset((each.producer_id, each.last_offset) for each in needed):
        return present
    return encode_transactions(needed)


def rebuild_transactions(
    reader: SegmentReader, snapshot: Snapshot, rebuilt: Sequence[SegmentRebuild], *, dry_run: bool
) -> list[SegmentRebuild]:
    """Rebuild what segments cannot by themselves: transaction indexes, and first unstable offsets that are unknown.

    Returns `rebuilt`, the rebuild of every segment, with what was done. A partition with a damaged log is left alone.
    """
    by_segment = {(each.segment.partition, each.segment.stem): each for each in rebuilt}
    for number, state in enumerate(snapshot.partitions):
        mine = [each for each in rebuilt if each.segment.partition == number]
        if not any(each.error for each in mine) and _has_work(state, mine):
            for found in transactions_of(reader, state):
                key = number, found.segment.stem
                by_segment[key] = _rebuild(reader, by_segment[key], found, dry_run=dry_run)
    return list(by_segment.values())


def _has_work(state: PartitionState, rebuilt: Sequence[SegmentRebuild]) -> bool:
    return bool(transactional_segments(state)) and len(rebuilt) == len(state.segments)


def _rebuild(
    reader: SegmentReader, rebuilt: SegmentRebuild, found: SegmentTransactions, *, dry_run: bool
) -> SegmentRebuild:
    segment, facts = rebuilt.segment, dict(rebuilt.facts)
    if segment.first_unstable_offset == NOT_LOOKED:
        facts["first_unstable_offset"] = found.first_unstable_offset
    is_sound = rebuilt.found[_SUFFIX] == "fine"
    present = _read(reader, segment) if is_sound else b""
    right = complete_index(present, _stored(found))
    if is_sound and right == present:
        return dataclasses.replace(rebuilt, facts=facts)
    if right and not dry_run:
        reader.storage.put(reader.name(segment, _SUFFIX), right)
        reader.forget_indexes(segment)
    facts |= {"txn_index_bytes": len(right), "txn_index_crc32c": crc32c(right)}
    state = {**rebuilt.found, _SUFFIX: "stale" if is_sound else rebuilt.found[_SUFFIX]}
    return dataclasses.replace(rebuilt, found=state, facts=facts, written={**rebuilt.written, _SUFFIX: len(right)})


def _read(reader: SegmentReader, segment: SegmentInfo) -> bytes:
    size = index_size(segment, _SUFFIX)
    return reader.storage.read(reader.name(segment, _SUFFIX), 0, size) if size else b""


def _stored(found: SegmentTransactions) -> Iterator[AbortedTransaction]:
    """The aborted transactions at the offsets that the segment's files have."""
    return (each.moved(-found.segment.shift) for each in found.aborted)


def with_missing_transactions(
    reader: SegmentReader, snapshot: Snapshot, verdicts: Sequence[SegmentVerdict]
) -> list[SegmentVerdict]:
    """The verdicts, with an anomaly for each transaction index that lacks aborted transactions of its log.

    Readers of committed records would get those. Partitions with damaged logs or indexes are not looked at.
    """
    by_segment = {(each.segment.partition, each.segment.stem): each for each in verdicts}
    for number, state in enumerate(snapshot.partitions):
        if all(each.ok for each in verdicts if each.segment.partition == number):
            # files may be replaced and vacuumed meanwhile
            with suppress(CorruptionError, SnapshotTooOldError, FileNotFoundError):
                for found in transactions_of(reader, state):
                    key = number, found.segment.stem
                    by_segment[key] = _verdict(reader, by_segment[key], found)
    return list(by_segment.values())


def _verdict(reader: SegmentReader, verdict: SegmentVerdict, found: SegmentTransactions) -> SegmentVerdict:
    present = _read(reader, found.segment)
    if complete_index(present, _stored(found)) == present:
        return verdict
    message = "aborted transactions are missing from the transaction index: rebuild the index"
    file, partition = reader.name(found.segment, _SUFFIX), found.segment.partition
    return dataclasses.replace(verdict, anomalies=(Anomaly("index_mismatch", message, file, partition),))

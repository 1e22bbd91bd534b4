"""Turns a reader's request, its offsets, times and isolation, into slices of segments."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, get_args

import pyarrow as pa

from distlog.core.arrays import table_of_numbers
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import OffsetOutOfRangeError, TopicNotFoundError
from distlog.core.integers import MIN_LONG, whole_number, whole_numbers
from distlog.core.read.time_lookup import EARLIEST, LATEST, start_by_index
from distlog.core.segments import slices
from distlog.core.segments.chunks import Isolation, IsolationLevel
from distlog.core.segments.segment_parts import DEPTH
from distlog.core.segments.segment_reader import INDEX_WORTH_BYTES, SegmentReader, read_slices
from distlog.core.segments.slices import ALWAYS, OutOfRange, SegmentSlice, TimeRange
from distlog.core.segments.transactions import aborted_transactions, last_stable_offset
from distlog.core.storage.parallel import in_order
from distlog.core.times import Time

#: By partition (start offset, end offset); None is the log's own bound.
Bounds = Mapping[int, tuple[int | None, int | None]]


def bounds(
    snapshot: Snapshot,
    partitions: int | Iterable[int] | None,
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
) -> Bounds:
    chosen = (
        range(len(snapshot.partitions)) if partitions is None else sorted({*whole_numbers("partition", partitions)})
    )
    for number in (*chosen, *_given(start), *_given(end)):
        if not 0 <= number < len(snapshot.partitions):
            raise TopicNotFoundError(
                f"the topic has partitions 0 to {len(snapshot.partitions) - 1}", partition=number
            )
    return {number: (_bound(number, start), _bound(number, end)) for number in chosen}


def times(
    start: int | Mapping[int, int] | None,
    end: int | Mapping[int, int] | None,
    start_time: Time | None,
    end_time: Time | None,
) -> TimeRange:
    if (start is not None and start_time is not None) or (end is not None and end_time is not None):
        raise ValueError("give start or start_time, and end or end_time, not both")
    return TimeRange.between(start_time, end_time)


def _given(offsets: int | Mapping[int, int] | None) -> list[int]:
    return whole_numbers("partition", offsets) if isinstance(offsets, Mapping) else []


def _bound(partition: int, offset: int | Mapping[int, int] | None) -> int | None:
    own = offset.get(partition) if isinstance(offset, Mapping) else offset
    return None if own is None else whole_number("offset", own)


def plan(
    reader: SegmentReader,
    snapshot: Snapshot,
    wanted: Bounds,
    isolation: IsolationLevel = "read_uncommitted",
    out_of_range: OutOfRange = "fail",
    times: TimeRange = ALWAYS,
) -> tuple[list[SegmentSlice], Isolation]:
    """The slices of what is asked, and the isolation that filters their batches. A bound may be EARLIEST or LATEST.

    Reads no data, with two exceptions. For a large segment that lies in `times` only from some record on, it reads
    the time index and the batch that this leads to. For read_committed it reads the transaction indexes, and the
    segments with transactions if the metadata does not have the last stable offset.
    """
    check_choice("isolation", isolation, IsolationLevel)
    check_choice("out_of_range", out_of_range, OutOfRange)
    start, end = {}, {}
    aborted = {}
    for number, (low, high) in wanted.items():
        state = snapshot.partitions[number]
        special = {EARLIEST: state.log_start_offset, LATEST: state.log_end_offset}
        start[number] = special[EARLIEST] if low is None else special.get(low, low)
        end[number] = special[LATEST] if high is None else special.get(high, high)
        if end[number] < 0:
            raise OffsetOutOfRangeError(
                "an end is an offset from 0 on, or LATEST: the last n records are tail(n)", partition=number, end=high
            )
        if isolation == "read_uncommitted":
            continue
        end[number] = min(end[number], last_stable_offset(reader, state))
        # a transaction that ended before the first offset has no later records
        first = slices.bounded_start(number, start[number], state, out_of_range)
        if transactions := aborted_transactions(reader, state, first):
            aborted[number] = transactions
    chosen = slices.plan(snapshot, start, end, out_of_range, times)
    return _begun_later(reader, chosen), Isolation.of(aborted)


def slices_of(
    reader: SegmentReader, snapshot: Snapshot, partition: int, start: int | None, times: TimeRange = ALWAYS
) -> Iterator[SegmentSlice]:
    """The slices that `plan` gives for one partition from `start` on, planned some segments at a time when needed."""
    state = snapshot.partitions[partition]
    low = slices.bounded_start(partition, state.log_start_offset if start is None else start, state, "fail")
    row, count = state.segments.find(low), 1
    while row < len(state.segments):
        row, count = row + count, 2 * count
        end = int(state.segments.base_offsets[row]) if row < len(state.segments) else state.log_end_offset
        yield from plan(reader, snapshot, {partition: (low, end)}, times=times)[0]
        low = end


def _begun_later(reader: SegmentReader, pieces: list[SegmentSlice]) -> list[SegmentSlice]:
    """The slices without the first offsets that time indexes rule out; a few indexes are read at once."""
    # an index is worth its request to skip the old part of a large segment
    rows = [
        row
        for row, piece in enumerate(pieces)
        if piece.times.oldest > MIN_LONG and piece.segment.log_bytes > INDEX_WORTH_BYTES
    ]
    reader.fetch_indexes([pieces[row].segment for row in rows])
    starts = in_order((partial(start_by_index, reader, pieces[row]) for row in rows), DEPTH)
    for row, start in zip(rows, starts, strict=True):
        pieces[row] = pieces[row]._replace(start_offset=start)
    return [piece for piece in pieces if piece.span[0] < piece.span[1]] if rows else pieces


def check_choice(name: str, value: str, choices: Any) -> None:
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, not {value}")


def is_every_offset_a_record(piece: SegmentSlice) -> bool:
    uncut = (piece.start_position, piece.end_position) == (0, piece.segment.log_bytes)
    return piece.times == ALWAYS and piece.segment.dense and uncut


def known_count(piece: SegmentSlice) -> int | None:
    if is_every_offset_a_record(piece):
        start, end = piece.span
        return end - start
    is_whole = piece.times == ALWAYS and piece.covers_segment and not piece.segment.has_transactions
    return piece.segment.record_count if is_whole else None


def most_records(slices: Sequence[SegmentSlice]) -> int:
    known = ((piece, known_count(piece)) for piece in slices)
    return sum(piece.span[1] - piece.span[0] if number is None else number for piece, number in known)


def count(reader: SegmentReader, slices: Sequence[SegmentSlice], isolation: Isolation, max_workers: int) -> int:
    """The number of records; a segment is only read if its metadata does not say how many of them it has."""
    known = [known_count(piece) for piece in slices]
    unknown = [piece for piece, number in zip(slices, known, strict=True) if number is None]
    looked_at = sum(len(batch) for batch in read_slices(reader, unknown, ("offset",), isolation, max_workers))
    return looked_at + sum(number for number in known if number is not None)


def by_partition(slices: Sequence[SegmentSlice]) -> pa.Table:
    names = ("partition", "start_offset", "end_offset", "segments", "bytes")
    rows: dict[int, dict[str, int]] = {}
    for piece in slices:
        (start, end), partition = piece.span, piece.segment.partition
        row = rows.setdefault(partition, dict(zip(names, (partition, start, end, 0, 0), strict=True)))
        row |= {"end_offset": end, "segments": row["segments"] + 1, "bytes": row["bytes"] + piece.estimated_bytes}
    return table_of_numbers(list(rows.values()), names)

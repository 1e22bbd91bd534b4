"""Turns the options of a read into offsets of a topic: where a read starts, and where a batch read ends."""

from __future__ import annotations

from collections.abc import Mapping

from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.reading.time_lookup import EARLIEST, LATEST, offset_for_time
from distlog.spark.source.read_options import Bound, ReadOptions

#: The offsets (start, end), by partition.
Ranges = Mapping[int, tuple[int, int]]


def read_bounds(reader: SegmentReader, snapshot: Snapshot, options: ReadOptions) -> dict[int, tuple[int, int]]:
    """The offsets (start, end), by partition, that the options mean at `snapshot`.

    Raises InvalidConfigError for options that do not fit the topic, and OffsetOutOfRangeError for offsets that the
    topic does not have. If `failOnDataLoss` is false, the offsets are cut to those that the topic has instead.
    """
    partitions = chosen_partitions(snapshot, options)
    for bound in (options.start, options.end):
        bound.check(snapshot.name, partitions)
    return {number: _range(reader, snapshot.partitions[number], number, options) for number in partitions}


def chosen_partitions(snapshot: Snapshot, options: ReadOptions) -> list[int]:
    """The partitions that the options name, ascending; raises InvalidConfigError if the topic has no such ones."""
    if options.subscribed not in (None, snapshot.name):
        raise InvalidConfigError(
            "option subscribe must name the topic of the path", subscribe=options.subscribed, topic=snapshot.name
        )
    every = range(len(snapshot.partitions))
    if options.assigned is None:
        return list(every)
    assigned = set(options.assigned.numbers)
    if options.assigned.topic != snapshot.name or not assigned <= set(every):
        raise InvalidConfigError(
            "option assign must name this topic and partitions that it has",
            topic=snapshot.name,
            partitions=len(every),
        )
    return sorted(assigned)


def start_offset(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> int:
    """Where a read of the partition starts; the topic may not have this offset.

    Raises InvalidConfigError if no record is at or after the time in the options.
    """
    bound = options.start
    value = _value(bound, partition)
    if bound.kind == "offset":
        return {EARLIEST: state.log_start_offset, LATEST: state.log_end_offset}.get(value, value)
    if found := offset_for_time(reader, state, value):
        return found[0]
    if options.unmatched_start == "latest":
        return state.log_end_offset
    raise InvalidConfigError(
        f"no record is at or after {bound.option}; startingOffsetsByTimestampStrategy=latest reads such a partition "
        "from its end",
        partition=partition,
        timestamp=value,
    )


def held_offset(state: PartitionState, partition: int, offset: int, options: ReadOptions) -> int:
    """`offset` if the partition has it or ends there; else the bound that is next to it.

    If `failOnDataLoss` is true, raises OffsetOutOfRangeError instead.
    """
    low, high = state.log_start_offset, state.log_end_offset
    if options.fail_on_data_loss and not low <= offset <= high:
        raise OffsetOutOfRangeError(
            "the partition does not hold this offset: ask for one between its bounds, or set "
            "failOnDataLoss=false to read what is there",
            partition=partition,
            offset=offset,
            log_start_offset=low,
            log_end_offset=high,
        )
    return min(max(offset, low), high)


def _range(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> tuple[int, int]:
    if options.start.kind == "offset" and _value(options.start, partition) == LATEST:
        raise InvalidConfigError(
            f"option {options.start.option} cannot be latest in a batch read", partition=partition
        )
    start = start_offset(reader, state, partition, options)
    end = _end(reader, state, partition, options)
    return held_offset(state, partition, start, options), held_offset(state, partition, end, options)


def _end(reader: SegmentReader, state: PartitionState, partition: int, options: ReadOptions) -> int:
    bound = options.end
    value = _value(bound, partition)
    if bound.kind == "offset":
        if value == EARLIEST:
            raise InvalidConfigError(f"option {bound.option} cannot be earliest in a batch read", partition=partition)
        return state.log_end_offset if value == LATEST else value
    found = offset_for_time(reader, state, value)
    return found[0] if found else state.log_end_offset


def _value(bound: Bound, partition: int) -> int:
    return bound.value if isinstance(bound.value, int) else bound.value.numbers[partition]

"""The partitions of a snapshot: immutable, and in columns, so that a commit to all partitions needs no loop.

Segments added to many partitions at once are a *layer* of rows. A partition that changes alone has its *own state*.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.arrays import Flags, Longs, booleans, integers, join, numbers_of
from distlog.core.commits.actions import Active
from distlog.core.commits.deduplication import NO_PRODUCERS, ProducerTable
from distlog.core.commits.segment_table import NO_OFFSET, NO_SEGMENTS, SegmentTable, check_append_times, check_fit

#: This many layers are merged if their sizes differ by less than this factor. More slow down lookups; fewer, commits.
_MERGED_LAYERS = 8
_LOOKUPS_BEFORE_MERGE = 32  # after this many lookups of single partitions all layers are merged
#: A commit to more than this many partitions with their own state first moves their states into the columns.
_MAX_OWN_STATES = 64


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition: its offsets from `log_start_offset` (inclusive) to `log_end_offset` (exclusive), and its segments.

    Below `first_dirty_offset` the partition is compacted. An `active` segment begins at `log_end_offset`; commits do
    not say where it ends. `producers` are those that commits recorded: the segments may have more.
    """

    log_start_offset: int = 0
    log_end_offset: int = 0
    segments: SegmentTable = NO_SEGMENTS
    first_dirty_offset: int = 0
    active: Active | None = None
    producers: ProducerTable = NO_PRODUCERS

    @property
    def first_unstable_offset(self) -> int:
        """The first offset of the oldest transaction that is open at the segments' end; NO_OFFSET if none is."""
        # only segments with transactions store it, and later segments without transactions do not change it
        rows = np.flatnonzero(self.segments.array("has_transactions"))
        return self.segments[int(rows[-1])].first_unstable_offset if len(rows) else NO_OFFSET

    @property
    def fits_columns(self) -> bool:
        return self.active is None and not self.producers


class PartitionTable(Sequence[PartitionState]):
    """The partitions 0, 1, ... of a snapshot.

    Their offsets are arrays, and their segments are layers of rows, older ones first. `own_states` has the partitions
    that changed alone, or that columns cannot hold; their offsets and rows in the columns are ignored. The states of
    other partitions are made on access, and cached in `states`.
    """

    __slots__ = ("_dirty", "_ends", "_layers", "_lookups", "_own_states", "_starts", "_states")

    def __init__(
        self,
        starts: Longs,
        ends: Longs,
        dirty: Longs,
        layers: Sequence[_Layer] = (),
        own_states: Mapping[int, PartitionState] | None = None,
        states: dict[int, PartitionState] | None = None,
    ) -> None:
        self._starts, self._ends, self._dirty = starts, ends, dirty
        self._layers, self._own_states = tuple(layers), own_states or {}
        self._states, self._lookups = {} if states is None else states, 0

    @classmethod
    def of(cls, states: Sequence[PartitionState]) -> PartitionTable:
        return cls.empty(len(states)).with_states(dict(enumerate(states)))

    @classmethod
    def empty(cls, count: int) -> PartitionTable:
        zeros = np.zeros(count, np.int64)
        return cls(zeros, zeros, zeros)

    @classmethod
    def of_columns(
        cls, starts: Longs, ends: Longs, dirty: Longs, rows: pa.RecordBatch, own_states: Mapping[int, PartitionState]
    ) -> PartitionTable:
        """Partitions with these offsets and sorted rows of segments. Ignores rows of partitions in `own_states`."""
        return cls(starts, ends, dirty, (_Layer(rows),) if len(rows) else (), own_states)

    @overload
    def __getitem__(self, index: int) -> PartitionState: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[PartitionState, ...]: ...

    def __getitem__(self, index: int | slice) -> PartitionState | tuple[PartitionState, ...]:
        if isinstance(index, slice):
            return tuple(self[number] for number in range(*index.indices(len(self))))
        number = int(index) if index >= 0 else int(index) + len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"there is no partition {index}: the topic has partitions 0 to {len(self) - 1}")
        state = self._own_states.get(number) or self._states.get(number)
        if state is None:
            self._lookups += 1
            if self._lookups > _LOOKUPS_BEFORE_MERGE:
                self._merge_layers()
            parts = [part for layer in self._layers if len(part := layer.of(number))]
            segments = SegmentTable.joined(parts) if parts else NO_SEGMENTS
            state = self._states[number] = self._state(number, segments)
        return state

    def __iter__(self) -> Iterator[PartitionState]:
        self._merge_layers()
        partitions = self._layers[0].partitions if self._layers else np.empty(0, np.int64)
        # the rows of partition i are from bounds[i] to bounds[i + 1]
        bounds = np.searchsorted(partitions, np.arange(len(self) + 1)).tolist()
        rows = SegmentTable(self._layers[0].rows) if self._layers else NO_SEGMENTS
        for number in range(len(self)):
            state = self._own_states.get(number) or self._states.get(number)
            if state is None:
                first, end = bounds[number], bounds[number + 1]
                part = rows.part(first, end) if end > first else NO_SEGMENTS
                state = self._states[number] = self._state(number, part)
            yield state

    def _state(self, number: int, segments: SegmentTable) -> PartitionState:
        start, end, dirty = (int(column[number]) for column in (self._starts, self._ends, self._dirty))
        return PartitionState(start, end, segments, dirty)

    def _merge_layers(self) -> None:
        if len(self._layers) > 1:
            self._layers = (_merged(self._layers),)

    def __len__(self) -> int:
        return len(self._ends)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionTable | tuple | list) or len(self) != len(other):
            return False
        return all(state == other_state for state, other_state in zip(self, other, strict=True))

    def __reduce__(self) -> tuple[Any, ...]:
        rows = _merged(self._layers).rows.serialize().to_pybytes() if self._layers else b""
        return _restore, (self._starts, self._ends, self._dirty, rows, dict(self._own_states))

    @property
    def log_start_offsets(self) -> Longs:
        return self._offsets(self._starts, "log_start_offset")

    @property
    def log_end_offsets(self) -> Longs:
        return self._offsets(self._ends, "log_end_offset")

    @property
    def first_dirty_offsets(self) -> Longs:
        return self._offsets(self._dirty, "first_dirty_offset")

    def _offsets(self, column: Longs, name: str) -> Longs:
        if self._own_states:
            column = column.copy()
            column[list(self._own_states)] = [getattr(state, name) for state in self._own_states.values()]
        return column

    @property
    def own_states(self) -> Mapping[int, PartitionState]:
        """The partitions with their own state; all with an active segment or with producers are among them."""
        return self._own_states

    @property
    def segment_count(self) -> int:
        """The number of segments, or more: it includes the ignored rows of partitions with their own state."""
        count = sum(len(state.segments) for state in self._own_states.values())
        return count + sum(len(layer.rows) for layer in self._layers)

    def segments(self) -> pa.RecordBatch:
        """The segments of all partitions as rows of SegmentTable's SCHEMA, sorted by (partition, base_offset)."""
        own_states = SegmentTable.batches([state.segments for state in self._own_states.values()])
        return _sorted(self.column_segments(), *own_states)

    def column_segments(self) -> pa.RecordBatch:
        """The segments of the partitions without their own state, as sorted rows like `segments`."""
        self._merge_layers()
        if not self._layers:
            return NO_SEGMENTS.columns()
        return _sorted(self._layers[0].without(self._own_states, len(self)).rows)

    def segment_counts(self) -> Longs:
        counts = np.zeros(len(self), np.int64)
        for layer in self._layers:
            counts += np.bincount(layer.partitions, minlength=len(self))
        for number, state in self._own_states.items():
            counts[number] = len(state.segments)
        return counts

    def has_segments(self, rows: pa.RecordBatch) -> Flags:
        """Flag the rows whose segment, by partition and stem (the file name without suffix), is in the table."""
        stems, flags = pc.unique(rows["stem"]), np.zeros(len(rows), bool)
        for layer in self._layers:
            # a key is a number for (partition, stem): partition * len(stems) + the row of the stem in `stems`
            _, keys = layer.without(self._own_states, len(self)).matching_rows(stems)
            flags |= np.isin(_segment_keys(rows, stems), keys)
        partitions = numbers_of(rows["partition"])
        # one by one, the partitions with their own state: their rows in the layers are ignored
        for number in np.unique(partitions[_flags(self._own_states, len(self))[partitions]]).tolist():
            partition_rows = np.flatnonzero(partitions == number)
            names = rows["stem"].take(integers(partition_rows)).to_pylist()
            common = self._own_states[number].segments.common_stems(set(names))
            flags[partition_rows] = [name in common for name in names]
        return flags

    def with_states(self, states: Mapping[int, PartitionState]) -> PartitionTable:
        if not states:
            return self
        # share the cache, unless it has a state that is replaced here, since it would keep that state in memory
        cache = self._states if self._states.keys().isdisjoint(states) else {}
        own_states = {**self._own_states, **states}
        return PartitionTable(self._starts, self._ends, self._dirty, self._layers, own_states, cache)

    def with_starts(self, starts: Mapping[int, int]) -> PartitionTable:
        """This table with higher log start offsets of partitions without their own state."""
        if not starts:
            return self
        numbers, raised = np.array([*starts]), self._starts.copy()
        raised[numbers] = np.maximum(raised[numbers], [*starts.values()])
        return PartitionTable(raised, self._ends, self._dirty, self._layers, self._own_states)

    def extended(self, count: int) -> PartitionTable:
        zeros = np.zeros(count - len(self), np.int64)
        starts, ends, dirty = (np.concatenate([column, zeros]) for column in (self._starts, self._ends, self._dirty))
        return PartitionTable(starts, ends, dirty, self._layers, self._own_states)

    def absorbed(self, partitions: Longs) -> PartitionTable:
        """Return an equal table. Moves own states into columns if over _MAX_OWN_STATES of `partitions` have one."""
        own_states = self._own_states
        if not own_states or np.count_nonzero(_flags(own_states, len(self))[partitions]) <= _MAX_OWN_STATES:
            return self
        states_for_columns = {number: state for number, state in own_states.items() if state.fits_columns}
        other_states = {number: state for number, state in own_states.items() if number not in states_for_columns}
        layers = [layer.without(own_states, len(self)) for layer in self._layers]
        if states_for_columns:
            layers.append(_Layer(join([state.segments.columns() for state in states_for_columns.values()])))
        layers = [layer for layer in layers if len(layer.rows)]
        merged = (_merged(layers),) if layers else ()
        offsets = self.log_start_offsets, self.log_end_offsets, self.first_dirty_offsets
        return PartitionTable(*offsets, merged, other_states)

    def changed(self, added: pa.RecordBatch, removed: pa.RecordBatch) -> PartitionTable:
        """This table after a commit to partitions without their own state; ValueError if segments do not fit."""
        partitions = numbers_of(added["partition"])
        if (partitions[1:] < partitions[:-1]).any():
            # the segments of a partition stay in the order in which the commit adds them
            added = added.take(integers(np.argsort(partitions, kind="stable")))
        partitions, bases = numbers_of(added["partition"]), numbers_of(added["base_offset"])
        # segments that begin before the log's end replace removed ones
        is_new = bases >= self._ends[partitions]
        replacements = _sorted(added if not is_new.any() else added.filter(booleans(~is_new)))
        new = added if is_new.all() else added.filter(booleans(is_new))
        layers = self._layers
        _check_distinct(added)
        if len(removed) or len(replacements):
            layers = self._replaced(replacements, removed)
        ends = self._ends_after(new, layers)
        for layer in layers:
            _check_not_live(layer, new)
        if len(new):
            layers = _stacked((*layers, _Layer(new)))
        return PartitionTable(self._starts, ends, self._dirty, layers, self._own_states)

    def _ends_after(self, new: pa.RecordBatch, layers: Sequence[_Layer]) -> Longs:
        """The log ends after the `new` segments; ValueError if one leaves a gap, or has an earlier append time."""
        partitions, bases, ends = (numbers_of(new[name]) for name in ("partition", "base_offset", "next_offset"))
        # the first new segment of a partition follows the log end, and each later one follows the row before
        expected = self._ends[partitions]
        follows_in_partition = partitions[1:] == partitions[:-1]
        expected[1:] = np.where(follows_in_partition, ends[:-1], expected[1:])
        if (bases != expected).any():
            row = int((bases != expected).argmax())
            raise ValueError(f"segment {new['stem'][row]} begins at {bases[row]}, not at the log end {expected[row]}")
        times = numbers_of(new["append_time_ms"])
        if (times >= 0).any():
            last_times = np.full(len(self), -1, np.int64)
            for layer in layers:
                # of several rows of a partition, numpy keeps the last one
                last_times[layer.partitions] = numbers_of(layer.rows["append_time_ms"])
            earlier = last_times[partitions]
            earlier[1:] = np.where(follows_in_partition, times[:-1], earlier[1:])
            if ((times >= 0) & (times < earlier)).any():
                raise ValueError("a segment was appended before the previous segment")
        new_ends: Longs = self._ends.copy()
        new_ends[partitions] = ends
        return new_ends

    def _replaced(self, added: pa.RecordBatch, removed: pa.RecordBatch) -> tuple[_Layer, ...]:
        """The layers without the `removed` segments, and with the `added` ones in the holes that these leave."""
        if not self._layers:
            raise ValueError("a removed segment is not live")
        layer = _merged(self._layers) if len(self._layers) > 1 else self._layers[0]
        stems = pc.unique(removed["stem"])
        is_removed = np.zeros(len(layer.rows), bool)
        if len(removed):
            _check_distinct(removed)
            rows, keys = layer.matching_rows(stems)
            is_removed[rows[np.isin(keys, _segment_keys(removed, stems))]] = True
        if np.count_nonzero(is_removed) != len(removed):
            raise ValueError("a removed segment is not live")
        bases, ends = (numbers_of(layer.rows[name]) for name in ("base_offset", "next_offset"))
        check_fit(added, layer.partitions, bases, ends, is_removed)
        remaining = _Layer(layer.rows.filter(booleans(~is_removed)))
        _check_not_live(remaining, added)
        if len(added):
            remaining = _merged([remaining, _Layer(added)])
            check_append_times(remaining.partitions, numbers_of(remaining.rows["append_time_ms"]))
        return (remaining,) if len(remaining.rows) else ()


class _Layer:
    """Rows of SegmentTable's SCHEMA that one or several commits added, and their distinct stems."""

    __slots__ = ("_stems", "partitions", "rows")

    def __init__(self, rows: pa.RecordBatch, stems: pa.Array | None = None) -> None:
        self.rows, self._stems = rows, stems
        self.partitions: Longs = numbers_of(rows["partition"])

    @property
    def stems(self) -> pa.Array:
        """The distinct stems of the rows, and perhaps of removed rows. Segments in a bundle file share its stem."""
        if self._stems is None:
            self._stems = pc.unique(self.rows["stem"])
        return self._stems

    def of(self, partition: int) -> SegmentTable:
        first, end = np.searchsorted(self.partitions, (partition, partition + 1)).tolist()
        return SegmentTable(self.rows, span=(first, end - first))

    def without(self, partitions: Iterable[int], count: int) -> _Layer:
        """Return the layer without the rows of `partitions`; the table has `count` partitions."""
        is_kept = ~_flags(partitions, count)[self.partitions]
        if is_kept.all():
            return self
        # an Arrow filter takes long to begin, also if no row is left
        rows = self.rows.filter(booleans(is_kept)) if is_kept.any() else self.rows.slice(0, 0)
        return _Layer(rows, self._stems)

    def matching_rows(self, stems: pa.Array) -> tuple[Longs, Longs]:
        """Return the numbers of the rows that have one of `stems`, and their `_segment_keys`."""
        codes = pc.index_in(self.rows["stem"], value_set=stems).fill_null(integers([-1], pa.int32())[0])
        rows: Longs = np.flatnonzero(numbers_of(codes) >= 0)
        return rows, self.partitions[rows] * len(stems) + numbers_of(codes)[rows]


def _sorted(*batches: pa.RecordBatch) -> pa.RecordBatch:
    partitions = np.concatenate([numbers_of(rows["partition"]) for rows in batches])
    bases = np.concatenate([numbers_of(rows["base_offset"]) for rows in batches])
    in_order = (partitions[1:] > partitions[:-1]) | ((partitions[1:] == partitions[:-1]) & (bases[1:] >= bases[:-1]))
    if in_order.all():
        return join(batches)
    order = integers(np.lexsort((bases, partitions)))
    # column by column, so that memory holds no second copy of all rows
    columns = [pa.concat_arrays(parts).take(order) for parts in zip(*(rows.columns for rows in batches), strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=batches[0].schema)


def _merged(layers: Sequence[_Layer]) -> _Layer:
    stems = [layer._stems for layer in layers if layer._stems is not None]
    all_stems = pc.unique(pa.concat_arrays(stems)) if len(stems) == len(layers) else None
    return _Layer(_sorted(*(layer.rows for layer in layers)), all_stems)


def _flags(partitions: Iterable[int], count: int) -> Flags:
    flags = np.zeros(count, bool)
    flags[list(partitions)] = True
    return flags


def _segment_keys(rows: pa.RecordBatch, stems: pa.Array) -> Longs:
    """Return a number for each row that identifies its (partition, stem); `stems` must have all stems of the rows."""
    codes = numbers_of(pc.index_in(rows["stem"], value_set=stems))
    keys: Longs = numbers_of(rows["partition"]) * len(stems) + codes
    return keys


def _check_distinct(rows: pa.RecordBatch) -> None:
    if len(rows):
        keys = _segment_keys(rows, pc.unique(rows["stem"]))
        if len(np.unique(keys)) < len(keys):
            raise ValueError("a segment is added or removed twice")


def _check_not_live(layer: _Layer, added: pa.RecordBatch) -> None:
    stems = pc.unique(added["stem"])
    common = stems.filter(pc.is_in(stems, value_set=layer.stems))
    if len(common):
        _, keys = layer.matching_rows(common)
        again = added.filter(pc.is_in(added["stem"], value_set=common))
        if np.isin(_segment_keys(again, common), keys).any():
            raise ValueError("a segment is added twice")


def _stacked(layers: tuple[_Layer, ...]) -> tuple[_Layer, ...]:
    """Merge the last _MERGED_LAYERS layers while their sizes are similar: small layers rarely cause large copies."""
    sizes = [len(layer.rows) for layer in layers[-_MERGED_LAYERS:]]
    while len(sizes) == _MERGED_LAYERS and max(sizes) < _MERGED_LAYERS * min(sizes):
        layers = (*layers[:-_MERGED_LAYERS], _merged(layers[-_MERGED_LAYERS:]))
        sizes = [len(layer.rows) for layer in layers[-_MERGED_LAYERS:]]
    return layers


def _restore(
    starts: Longs, ends: Longs, dirty: Longs, rows: bytes, own_states: Mapping[int, PartitionState]
) -> PartitionTable:
    schema = NO_SEGMENTS.columns().schema
    layers = (_Layer(pa.ipc.read_record_batch(pa.py_buffer(rows), schema)),) if rows else ()
    return PartitionTable(starts, ends, dirty, layers, own_states)


NO_PARTITIONS = PartitionTable.empty(0)

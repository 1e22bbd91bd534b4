"""The key index of a segment, `<stem>.keyindex`, which finds the batches with a key. Kafka has no key index."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from math import isqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import Bytes, Longs, byte_array
from distlog.core.errors import CorruptIndexError
from distlog.core.format.indexes import IndexBytes
from distlog.core.format.kernels.key_entries import (
    ABSENT,
    BLOCK_BYTES,
    BLOCK_ENTRIES,
    BUCKETS,
    CRC_BYTES,
    ENTRY_BYTES,
    IN_EARLIER_BLOCK,
    IN_LATER_BLOCK,
    POSTING_BYTES,
    CollectedPairs,
    collect_pairs,
    collect_pairs_of_entries,
    find_entries,
    find_in_each,
    first_bad_block,
    hash_keys,
    move_to_buckets,
    read_postings,
    write_items,
)
from distlog.core.format.record_decoder import RecordFields, opened_sections, scan_sections

Ranges = list[tuple[int, int]]
Ints = npt.NDArray[np.int32]

# An index has two tables. The first has an entry for each distinct hash, in ascending order:
#
#     position | type | field
#     0        | i64  | hash of the key: its XXH64 with seed 0, as in Parquet's bloom filters, without the highest bit
#     8        | i32  | position in the log of the only batch with the key, or the complement (~) of the number of the
#              |      | key's first posting
#
# The second table has postings (i32) for each key that is in several batches: the ascending positions of the batches,
# of which the last is a complement. All integers are big-endian. Both tables consist of blocks of 4096 bytes, each
# with a CRC-32C at the end (kernels/key_entries.py). Readers compare the keys, since keys may share a hash.
#
# Hashes are uniform. So among n entries, the entry of hash h is near the place n * h / 2^63, with a standard
# deviation of at most sqrt(n) / 2. A read of a few blocks finds it in an index of any size.

#: A segment with a shorter log gets no key index, since one read is enough to search the log.
LEAST_LOG_BYTES = 256 << 10
_DEVIATIONS = 4  # the first read finds entries within this many standard deviations of their expected place
#: A builder collects pairs of a key's hash and the position of a batch with the key. It skips a pair that is still in
#: its cache of recent pairs. This is the number of slots of the cache.
_RECENT = 1 << 12
#: The most pairs for which a builder allocates room at once, unless the next records have more keys.
_MOST_ROOM = 1 << 20
#: If the insertion sort of `write_items` makes more moves per pair than this, someone chose keys with similar hashes.
#: Then `write_items` stops, and `index_file` sorts the pairs first.
_MOST_MOVES = 16
#: Ranges with at most this many blocks between them are read as one.
_GAP_BLOCKS = 4
_FIRST_POSTINGS = 64  # the number of postings of a key that are read first
_NONE: Longs = np.empty(0, np.int64)


def hashes_of(keys: pa.Array) -> Longs:
    """Return the hash of each key in a binary array without nulls."""
    hashes = np.empty(len(keys), np.int64)
    _, offsets, data = keys.cast(pa.large_binary()).buffers()
    key_offsets = np.frombuffer(offsets, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    hash_keys(byte_array(data) if data else np.empty(0, np.uint8), np.ascontiguousarray(key_offsets), hashes)
    return hashes


class KeyBatches(NamedTuple):
    """The batches that may hold keys: their ascending positions in the log, and for each the row of its hash."""

    positions: Longs
    rows: Longs

    @classmethod
    def of(cls, positions: Sequence[Longs], rows: Sequence[Longs]) -> KeyBatches:
        all_positions, all_rows = np.concatenate(positions), np.concatenate(rows)
        order = np.argsort(all_positions, kind="stable")
        return cls(all_positions[order], all_rows[order])


NO_ENTRIES = bytes(CRC_BYTES)  # the index of a log without keys
NO_BATCHES = KeyBatches(_NONE, _NONE)
#: Yields ranges of bytes of an index, is sent their bytes, and returns the result.
KeySearch = Generator[Ranges, Sequence[Any], KeyBatches]


def search(entries: int, size: int, log_crc: int, hashes: Longs) -> KeySearch:
    """Search an index of `size` bytes for sorted, distinct hashes.

    `log_crc` is the checksum of the log's first batch. Raises CorruptIndexError, which names no file.
    """
    if size == len(NO_ENTRIES):
        return NO_BATCHES
    entry_table = _Table(0, entries, ENTRY_BYTES)
    posting_table = _Table(entry_table.end, _items(size - entry_table.end, POSTING_BYTES), POSTING_BYTES)
    if entry_table.end > size or posting_table.end != size:
        raise CorruptIndexError("the index file has another size than its entries: rebuild the index")
    # the value of each hash's entry, or ABSENT; a number above ABSENT, as at the start, keeps the search going
    values = np.full(len(hashes), IN_LATER_BLOCK if entries else ABSENT)
    reach = _DEVIATIONS * (isqrt(entries) // 2 + 1)  # in entries, before and after the expected one
    while len(rows := np.flatnonzero(values > ABSENT)):
        expected = (hashes[rows] * (entries / 2**63)).astype(np.int64)
        windows = entry_table.windows(expected - reach, expected + reach + 1)
        for window, data in zip(windows, (yield [window.bytes for window in windows]), strict=True):
            targets = hashes[rows[window.rows]]
            results = np.empty(len(targets), np.int64)
            find_entries(_checked(data, log_crc), window.end - window.start, targets, results)
            if window.start == 0:
                results[results == IN_EARLIER_BLOCK] = ABSENT
            if window.end == entries:
                results[results == IN_LATER_BLOCK] = ABSENT
            values[rows[window.rows]] = results
        reach *= _DEVIATIONS  # the next reads look further away
    if (values == ABSENT).all():
        return NO_BATCHES
    single_rows = np.flatnonzero((values >= 0) & (values < ABSENT))
    positions, rows_of_positions = [values[single_rows]], [single_rows]
    # the starts of lists ascend, as `windows` needs, since postings are written in the order of hashes
    list_rows, length = np.flatnonzero(values < 0), _FIRST_POSTINGS
    while len(list_rows):
        remaining, starts = [_NONE], ~values[list_rows]  # the number of each list's first posting
        windows = posting_table.windows(starts, starts + length)
        for window, data in zip(windows, (yield [window.bytes for window in windows]), strict=True):
            blocks, count, rows = _checked(data, log_crc), window.end - window.start, list_rows[window.rows]
            window_positions, list_indexes = np.empty(count, np.int64), np.empty(count, np.int64)
            first_items = starts[window.rows] - window.start
            written = read_postings(blocks, count, first_items, window_positions, list_indexes)
            if written >= 0:
                positions.append(window_positions[:written])
                rows_of_positions.append(rows[list_indexes[:written]])
            elif window.end < posting_table.items:
                remaining.append(rows)  # a list continues after the window, so all its lists are read again
            else:
                raise CorruptIndexError("a list of postings does not end: rebuild the index")
        list_rows, length = np.concatenate(remaining), 8 * length
    return KeyBatches.of(positions, rows_of_positions)


def search_each(
    entries: Longs, sizes: Longs, log_crcs: Longs, key_hash: int, read: Callable[[Longs, Longs], Any]
) -> dict[int, KeyBatches]:
    """Search several indexes for one hash with one read; the result lacks indexes for which that is not enough.

    `read` returns bytes [starts[i], ends[i]) of each index i, back to back.
    """
    share, block_counts = key_hash / 2**63, -(-entries // BLOCK_ENTRIES)
    expected = (share * entries).astype(np.int64)
    # the standard deviation for this hash, which is below the bound for all hashes that `search` uses
    reach = (_DEVIATIONS * (np.sqrt(share * (1 - share) * entries) + 1)).astype(np.int64)
    first_blocks = np.minimum(np.maximum((expected - reach) // BLOCK_ENTRIES, 0), block_counts - 1)
    end_blocks = np.minimum((expected + reach) // BLOCK_ENTRIES + 1, block_counts)
    table_bytes = entries * ENTRY_BYTES + block_counts * CRC_BYTES
    starts, ends = first_blocks * BLOCK_BYTES, np.minimum(end_blocks * BLOCK_BYTES, table_bytes)
    if (table_bytes > sizes).any():
        return {}  # a size is wrong, and `search` raises the error
    data = byte_array(read(starts, ends))
    data_ends = np.cumsum(ends - starts)
    counts = np.minimum(end_blocks * BLOCK_ENTRIES, entries) - first_blocks * BLOCK_ENTRIES
    values = np.empty(len(entries), np.int64)
    find_in_each(data, data_ends - (ends - starts), data_ends, counts, log_crcs, key_hash, values)
    values[(values == IN_EARLIER_BLOCK) & (first_blocks == 0)] = ABSENT
    values[(values == IN_LATER_BLOCK) & (end_blocks == block_counts)] = ABSENT
    results = dict.fromkeys(np.flatnonzero(values == ABSENT).tolist(), NO_BATCHES)
    for row in np.flatnonzero((values >= 0) & (values < ABSENT)).tolist():
        results[row] = KeyBatches(values[row : row + 1], np.zeros(1, np.int64))
    return results


class _Window(NamedTuple):
    """The items [start, end) of a table, in whole blocks, that are read for the targets in `rows`."""

    bytes: tuple[int, int]
    start: int
    end: int
    rows: slice


class _Table(NamedTuple):
    """A table of `items` of `item_bytes`, from byte `begin` of the file on."""

    begin: int
    items: int
    item_bytes: int

    @property
    def end(self) -> int:
        return self.begin + self.items * self.item_bytes + -(-self.items // self.block_items) * CRC_BYTES

    @property
    def block_items(self) -> int:
        return (BLOCK_BYTES - CRC_BYTES) // self.item_bytes

    def windows(self, starts: Longs, ends: Longs) -> list[_Window]:
        """Return the windows with the items [starts[i], ends[i]) of each row i; `starts` and `ends` must ascend."""
        per_block, block_count = self.block_items, -(-self.items // self.block_items)
        # row i needs the blocks [firsts[i], stops[i]); a long gap before them begins a window
        firsts = np.minimum(np.maximum(starts // per_block, 0), block_count - 1)
        stops = np.minimum(np.maximum(-(-ends // per_block), firsts + 1), block_count)
        begins_window = firsts[1:] > stops[:-1] + _GAP_BLOCKS
        # faster without numpy for one hash
        begins = [0, *(np.flatnonzero(begins_window) + 1).tolist()] if len(begins_window) else [0]
        return [
            self._window(int(firsts[begin]), int(stops[end - 1]), slice(begin, end))
            for begin, end in zip(begins, [*begins[1:], len(starts)], strict=True)
        ]

    def _window(self, first: int, end: int, rows: slice) -> _Window:
        span = self.begin + first * BLOCK_BYTES, min(self.begin + end * BLOCK_BYTES, self.end)
        per_block = self.block_items
        return _Window(span, first * per_block, min(end * per_block, self.items), rows)


def _items(table_bytes: int, item_bytes: int) -> int:
    """Return the number of items in a table of `table_bytes`."""
    return (table_bytes - -(-table_bytes // BLOCK_BYTES) * CRC_BYTES) // item_bytes


def _checked(data: Any, log_crc: int) -> Bytes:
    blocks = byte_array(data)
    bad = first_bad_block(blocks, log_crc)
    if bad >= 0:
        raise CorruptIndexError(
            "a block of the key index fails its checksum, or the index belongs to another log: rebuild the index"
        )
    return blocks


class KeyIndexBuilder:
    """Collects the keys of a log, batch by batch; it holds 12 bytes for each key in each batch."""

    def __init__(self) -> None:
        self._hashes: list[Longs] = []
        self._positions: list[Ints] = []
        self._room = np.empty(0, np.int64), np.empty(0, np.int32)
        self._recent = np.full(2 * _RECENT, -1, np.int64)
        self._bucket_sizes = np.zeros(BUCKETS, np.int64)
        self._log_crc = -1

    def add(self, data: Any, batches: npt.NDArray[Any], position: int) -> None:
        """Add `batches` (BATCH rows with right checksums) of `data`, which begins at `position` of the log.

        After a CorruptRecordError the builder may lack keys.
        """
        if self._log_crc < 0:
            self._log_crc = int(batches["crc"][0])
        for part, records, sections in opened_sections(byte_array(data), batches):
            record_count = int(sections["record_count"].sum())
            if len(self._room[0]) < record_count:
                size = max(record_count, min(self.pairs, _MOST_ROOM))
                self._room = np.empty(size, np.int64), np.empty(size, np.int32)
            hashes, positions = self._room
            pairs = CollectedPairs(hashes, positions, self._recent, self._bucket_sizes)
            batch_positions = part.batches["position"] + position
            written = -1
            if part.batches["magic"][0] == 2:
                written = collect_pairs(records, sections, batch_positions, pairs)
            if written < 0:
                # the batches are of an older format, or this scan raises the error of a malformed record
                fields = RecordFields.allocate(record_count, ("key",))
                scan_sections(part, records, sections, fields)
                written = collect_pairs_of_entries(records, fields.key, sections, batch_positions, pairs)
            self._hashes.append(hashes[:written])
            self._positions.append(positions[:written])
            self._room = hashes[written:], positions[written:]

    @property
    def pairs(self) -> int:
        return sum(map(len, self._hashes))

    def find(self, hashes: Longs) -> KeyBatches:
        """Return the collected batches that may hold a key with one of the sorted, distinct hashes."""
        if not self.pairs:
            return NO_BATCHES
        # join the parts of many calls of `add` once, for later calls too
        self._hashes, self._positions = [np.concatenate(self._hashes)], [np.concatenate(self._positions)]
        rows = np.searchsorted(hashes, self._hashes[0]).clip(max=len(hashes) - 1)
        is_found = hashes[rows] == self._hashes[0]
        return KeyBatches.of([self._positions[0][is_found].astype(np.int64)], [rows[is_found]])

    def finish(self) -> tuple[IndexBytes, int]:
        """Return the bytes of the index, and its number of entries."""
        if not self.pairs:
            return NO_ENTRIES, 0
        result = index_file(self._hashes, self._positions, self._bucket_sizes, self._log_crc)
        self._hashes, self._positions = [], []
        return result


def index_file(
    hashes: Sequence[Longs], positions: Sequence[Ints], bucket_sizes: Longs, log_crc: int
) -> tuple[IndexBytes, int]:
    """Return the index of pairs that are in the order of their positions, and its number of entries."""
    count = int(bucket_sizes.sum())
    room = _Table(0, count, ENTRY_BYTES).end
    # The pairs take the end of the file's memory. `write_items` writes the entries from its start on, and has read a
    # bucket of pairs before it writes the entries of the bucket. So entries overwrite only pairs that were read.
    file, postings = np.empty(room, np.uint8), np.empty(_Table(0, count, POSTING_BYTES).end, np.uint8)
    pairs = file[room - count * ENTRY_BYTES :]
    # `write_items` divides each bucket into these sub-buckets, of one or two pairs if the hashes are uniform
    sub_bucket_rows = np.empty(1 << max((count // BUCKETS).bit_length() - 1, 0), np.int64)
    scratch = np.empty(bucket_sizes.max(), np.int64), np.empty(bucket_sizes.max(), np.int32)

    def write(hashes: Sequence[Longs], positions: Sequence[Ints]) -> tuple[int, int]:
        # the starts of the buckets; `move_to_buckets` advances them to the ends
        next_rows = np.cumsum(bucket_sizes) - bucket_sizes
        for part, positions_of_part in zip(hashes, positions, strict=True):
            move_to_buckets(part, positions_of_part, next_rows, pairs)
        return write_items(pairs, next_rows, _MOST_MOVES * count, sub_bucket_rows, *scratch, log_crc, file, postings)

    entries, posting_count = write(hashes, positions)
    if entries < 0:
        # someone chose keys with similar hashes; sorted pairs need no moves
        all_hashes, all_positions = np.concatenate(hashes), np.concatenate(positions)
        order = np.argsort(all_hashes, kind="stable")
        entries, posting_count = write([all_hashes[order]], [all_positions[order]])
    entry_end, posting_bytes = _Table(0, entries, ENTRY_BYTES).end, _Table(0, posting_count, POSTING_BYTES).end
    file[entry_end : entry_end + posting_bytes] = postings[:posting_bytes]
    return file[: entry_end + posting_bytes].data, entries

"""Recovers a segment after a crash: walks its log, keeps the whole batches, and cuts off a torn end.

The walk folds headers as appends do, so it gets the same state and indexes as they did (Kafka's
`LogSegment.recover`). It compares checksums, and decompresses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import LOG_OVERHEAD
from distlog.core.kernels.segment_fold import NEXT_OFFSET, POSITION
from distlog.core.log.segment.batch_walk import Batches, sound_batches
from distlog.core.log.segment.segment_files import SegmentFiles
from distlog.core.segments.segment_state import Numbers, emptied, places
from distlog.core.segments.state_fold import Folded, fold
from distlog.core.transactions.open_transactions import OpenTransactions

(_UNSTABLE,) = places(("first_unstable_offset",))
_FLUSHED = list(places(("flushed_offset", "flushed_position", "flushed_ms")))


class Recovery(NamedTuple):
    """The result of a walk: the numbers, (leader epoch, start offset) of each epoch, how many bytes were cut off."""

    numbers: Numbers
    epochs: list[tuple[int, int]]
    truncated: int


def recover(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions, end: int | None = None
) -> Recovery:
    """Walk from what `numbers` count up to `end`, write index entries, and cut all files behind the last sound batch.

    `transactions` are those that are open where the walk begins. Raises UnfitBatchError, before anything is cut, for
    offsets that an index cannot hold.
    """
    size, epochs = files.log.size(), list[tuple[int, int]]()
    numbers = _with_unstable(numbers, transactions)
    for before, folded, found in _folds(files, numbers, interval, transactions, size if end is None else end):
        files.write_entries(before, folded.entries)
        epochs += new_epochs(found.rows, epochs[-1][0] if epochs else -1)
        numbers = folded.numbers
    files.cut(numbers)
    return Recovery(numbers, epochs, size - int(numbers[POSITION]))


def write_again(
    files: SegmentFiles,
    numbers: Numbers,
    interval: int,
    transactions: OpenTransactions,
    flushed_offset: int,
    flushed_position: int,
    *,
    only_read: bool,
) -> Numbers | None:
    """Write the log behind `flushed_position`, and the indexes, again as they are; None if batches are damaged.

    With `only_read` they are compared with their checksums, and not written. Damaged indexes are made anew: returns
    the numbers with them. `transactions` are those that are open where the segment begins.
    """
    position, end = flushed_position, int(numbers[POSITION])
    for found in sound_batches(files.log, position, end, flushed_offset):
        if not only_read:
            files.log.write(found.data, found.position)
        position = found.end
    if position < end:
        return None
    if not files.has_entries(numbers):
        made = with_new_indexes(files, numbers, interval, transactions)
        if made is None:
            return None
        numbers = made
    elif only_read:
        return numbers
    files.write_entries_again(numbers)
    return numbers if files.has_entries(numbers) else None


def with_new_indexes(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions
) -> Numbers | None:
    """Make the indexes anew from the log, and return the numbers that count them; None if a batch is damaged.

    Then nothing was changed. `transactions` are those that are open where the segment begins.
    """
    end, made, entries = int(numbers[POSITION]), emptied(files.stem, numbers), list[tuple[Numbers, Folded]]()
    made[_FLUSHED] = numbers[_FLUSHED]
    for before, folded, _ in _folds(files, made, interval, transactions, end):
        entries.append((before, folded))
        made = folded.numbers
    if made[POSITION] < end:
        return None
    for before, folded in entries:
        files.write_entries(before, folded.entries)
    files.clear_behind_entries(made)
    return made


def look_through(files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions) -> Numbers:
    """The numbers that `recover` would return, for a process that may only read: nothing is written or cut."""
    numbers = _with_unstable(numbers, transactions)
    for _, folded, _ in _folds(files, numbers, interval, transactions, files.log.size()):
        numbers = folded.numbers
    return numbers


def unknown_bytes(files: SegmentFiles, numbers: Numbers) -> int:
    """How many bytes the log has behind what `numbers` count; negative if it is shorter.

    Preallocated space is not counted. It is told by its zeros: no batch begins with LOG_OVERHEAD of them.
    """
    position = int(numbers[POSITION])
    beyond = files.log.size() - position
    if beyond > 0 and files.log_bytes and not any(files.log.read(position, position + LOG_OVERHEAD)):
        return 0
    return beyond


def _folds(
    files: SegmentFiles, numbers: Numbers, interval: int, transactions: OpenTransactions, end: int
) -> Iterator[tuple[Numbers, Folded, Batches]]:
    for found in sound_batches(files.log, int(numbers[POSITION]), end, int(numbers[NEXT_OFFSET])):
        aborted = transactions.see(found.data, found.rows)
        folded = fold(numbers, found.data, found.rows, interval, aborted=aborted)
        after = _with_unstable(folded.numbers, transactions)
        yield numbers, Folded(after, folded.entries), found
        numbers = after


def _with_unstable(numbers: Numbers, transactions: OpenTransactions) -> Numbers:
    changed = numbers.copy()
    changed[_UNSTABLE] = transactions.first_offset
    return changed


def new_epochs(rows: npt.NDArray[Any], latest: int) -> list[tuple[int, int]]:
    """(leader epoch, start offset) of each epoch above `latest` that begins in these batches."""
    known = np.maximum.accumulate(np.concatenate([[latest], rows["leader_epoch"]]))
    rises = np.flatnonzero(known[1:] > known[:-1])
    epochs: list[int] = rows["leader_epoch"][rises].tolist()
    return list(zip(epochs, rows["base_offset"][rises].tolist(), strict=True))

"""Writes the transaction index of a segment, which has a file of its own even if the log is in a bundle."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from distlog.core import paths
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.indexes.transaction_index import AbortedTransaction, encode_transactions
from distlog.core.segments.index_facts import index_facts
from distlog.core.storage.storage import Storage


def with_aborted(
    storage: Storage, topic: str, segment: SegmentInfo, aborted: Iterable[AbortedTransaction], base_offset: int
) -> SegmentInfo:
    """The segment with a durable index of the transactions `aborted` in it, or without one if there are none.

    The transactions are at the offsets that readers see, of which the segment's log begins at `base_offset`, and in
    the order of their last offsets. Raises StorageError.
    """
    data = encode_transactions(each.moved(segment.stored_base_offset - base_offset) for each in aborted)
    if data:
        storage.put(paths.segment_file(topic, segment.partition, segment.stem, ".txnindex"), data)
    return dataclasses.replace(segment, **index_facts({".txnindex": data}))

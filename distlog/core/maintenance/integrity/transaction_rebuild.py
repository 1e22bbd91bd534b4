"""Makes transaction indexes anew, from the logs of a partition."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from distlog.core.indexes.transaction_index import ENTRY, AbortedTransaction, encode_transactions


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

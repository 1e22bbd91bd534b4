"""Arrow batches as immutable columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa


def join(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """All rows of `batches` in one batch; there must be at least one, and all must have the same schema."""
    whole = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return whole[0] if whole else batches[0]

"""The rows of reports: their sums, and an Arrow table of them."""

from __future__ import annotations

import pyarrow as pa


def sums_of(rows: list[dict[str, int]], *names: str) -> dict[str, int]:
    """The sums of these columns."""
    return {name: sum(row[name] for row in rows) for name in names}


def table_of(rows: list[dict[str, int]], names: tuple[str, ...]) -> pa.Table:
    """These columns, each of int64."""
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.int64()) for name in names]))

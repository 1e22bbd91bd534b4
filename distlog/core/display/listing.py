"""A listing: a table of metadata that shows itself as one, in a notebook and as text, not as raw Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core.display import tables

if TYPE_CHECKING:
    import pandas as pd


class Listing:
    """Rows of metadata, such as commits or segments; immutable.

    It is an Arrow stream (`pyarrow.table(listing)`, Polars, DuckDB), and `listing["column"]` is one of its columns.
    `what` says what the rows are, and `shown` which columns are shown.
    """

    def __init__(self, table: pa.Table, what: str, shown: Sequence[str] | None = None) -> None:
        self._table, self._what = table, what
        self._shown = list(table.schema.names if shown is None else shown)

    @property
    def schema(self) -> pa.Schema:
        """The names and the types of the columns."""
        return self._table.schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.schema.names)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """A column as Arrow; raises KeyError if there is none of this name."""
        return self._table.column(name)

    def to_table(self) -> pa.Table:
        """All rows and columns as an Arrow table."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """All rows and columns as a pandas DataFrame; pandas must be installed."""
        return self._table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """All rows as dicts."""
        return self._table.to_pylist()  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self._table[name]

    def __len__(self) -> int:
        return self.num_rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and bool(self._table.equals(other._table))

    __hash__ = None  # type: ignore[assignment]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The rows as an Arrow stream."""
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{self._title()}\n{tables.lines(self._table, self._shown)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title())}</p>{tables.html(self._table, self._shown)}"

    def _title(self) -> str:
        hidden = len(self._table.schema.names) - len(self._shown)
        more = f"; {hidden} more columns in to_pandas()" if hidden else ""
        return f"{self._what}: {self.num_rows:,}{more}"

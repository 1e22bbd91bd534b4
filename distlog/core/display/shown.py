"""What reports inherit, so that they show themselves: one line as text, and with their rows in a notebook."""

from __future__ import annotations

from dataclasses import Field, fields
from html import escape
from typing import Any, ClassVar

import pyarrow as pa

from distlog.core.display import tables


class Shown:
    """A report whose `str` says what was done, and whose `to_table` has the rows of it."""

    __slots__ = ()

    def to_table(self) -> pa.Table:
        """The rows of the report."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {' | '.join(str(self).splitlines())}>"

    def _repr_html_(self) -> str:
        table = self.to_table()
        said = "<br>".join(escape(line) for line in str(self).splitlines())
        return f"<p>{said}</p>{tables.html(table) if table.num_rows else ''}"


class ShownSettings:
    """A dataclass of settings under Kafka's names: as text those that were set, in a notebook all of them."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def all(self) -> dict[str, object]:
        """Every setting."""
        raise NotImplementedError

    def overrides(self) -> dict[str, str]:
        """The settings that are not the defaults."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.overrides().items())})"

    def _repr_html_(self) -> str:
        given = self.overrides()
        meanings = {one.name.replace("_", "."): one.metadata.get("doc") for one in fields(self)}
        rows = [
            {
                "setting": name,
                "value": str(value),
                "set": "yes" if name in given else "",
                "meaning": meanings.get(name),
            }
            for name, value in {**self.all(), **given}.items()
        ]
        return tables.html(pa.Table.from_pylist(rows), most=len(rows))

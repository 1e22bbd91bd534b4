"""Tables for people: HTML for a notebook, aligned text elsewhere. Of long tables they show both ends."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import pyarrow as pa

from distlog.core.display.cells import cells, is_number

#: Rows of a table in a notebook, and as text.
HTML_ROWS, TEXT_ROWS = 20, 10


def html(table: pa.Table, columns: Sequence[str] | None = None, most: int = HTML_ROWS) -> str:
    """The table as HTML, some columns or all, at most `most` rows of it."""
    titles, rows, _ = _laid_out(table, columns, most)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def lines(table: pa.Table, columns: Sequence[str] | None = None, most: int = TEXT_ROWS) -> str:
    """The table as lines of text, some columns or all, at most `most` rows of it; numbers stand to the right."""
    titles, rows, right = _laid_out(table, columns, most)
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (titles, *rows)
    )


def _laid_out(
    table: pa.Table, columns: Sequence[str] | None, most: int
) -> tuple[list[str], list[list[str]], list[bool]]:
    """The titles, the rows with a row of dots for those that are left out, and which columns are numbers."""
    chosen = table.select(list(columns)) if columns is not None else table
    names = list(chosen.schema.names)
    rows = _rows(chosen.slice(0, most - most // 2 if chosen.num_rows > most else most))
    if chosen.num_rows > most:
        rows += [["…"] * len(names), *_rows(chosen.slice(chosen.num_rows - most // 2))]
    return names, rows, [is_number(field.type) for field in chosen.schema]


def _rows(table: pa.Table) -> list[list[str]]:
    columns = [cells(table.column(number), name) for number, name in enumerate(table.schema.names)]
    return [list(row) for row in zip(*columns, strict=True)]

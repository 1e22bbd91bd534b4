"""Prints batches of records: fast to a file or a pipe, as a table on a terminal."""

from __future__ import annotations

import sys

import pyarrow as pa

from distlog.console import output, record_lines


def print_batch(batch: pa.RecordBatch, *, as_json: bool, titles: bool) -> None:
    """Print the rows of a batch, below a line of titles if that is asked for and they are not JSON."""
    if not _takes_utf8() or (sys.stdout.isatty() and not as_json):
        rows = output.rows_of(batch)
        return output.print_json(*rows) if as_json else output.print_rows(rows, batch.schema.names, titles=titles)
    if titles and not as_json:
        sys.stdout.write("\t".join(batch.schema.names) + "\n")
    print_bytes(record_lines.json_objects(batch) if as_json else record_lines.tabbed(batch))
    return None


def print_bytes(lines: bytes | memoryview) -> None:
    """Print bytes as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(lines)


def _takes_utf8() -> bool:
    """Whether standard output is a stream of bytes in UTF-8."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8" and hasattr(sys.stdout, "buffer")

"""Decoded bytes as rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from distlog.core.format.record_batch import read_headers
from distlog.core.format.record_decoder import decode

HEADERS = ((b"h1", b"x"), (b"h2", None), ("ключ".encode(), b""))


def rows(data: bytes, **options: Any) -> list[dict[str, Any]]:
    decoded = decode(data, read_headers(data), **options)
    index = decoded.schema.get_field_index("timestamp")
    if index >= 0:
        decoded = decoded.set_column(index, "timestamp", decoded.column(index).cast(pa.int64()))
    return decoded.to_pylist()


def offsets(data: bytes, **options: Any) -> list[int]:
    return [row["offset"] for row in rows(data, columns=["offset"], **options)]

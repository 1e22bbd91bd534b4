"""Parses JSON from storage in bounded memory."""

from __future__ import annotations

import json
from typing import Any

# What any text may hold, and how many bytes each value more must have: a commit's have 20 to 30.
FREE_VALUES = 1_000_000
BYTES_PER_VALUE = 16


def parse(data: bytes) -> Any:
    """The value of the JSON text `data`; raises as `check` does, and ValueError when it is not JSON.

    Raises RecursionError when it is nested too deep.
    """
    check(data)
    return json.loads(data)


def check(data: bytes) -> None:
    """Raise ValueError when `data` holds far more values than metadata of its size does.

    A text of empty lists takes twenty times its size in memory.
    """
    # commas and brackets inside strings count too; metadata has few of them
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > FREE_VALUES + len(data) // BYTES_PER_VALUE:
        raise ValueError(f"it holds {values} values in {len(data)} bytes, more than metadata does")

"""JSON from storage, with a bound on the memory that it takes."""

from __future__ import annotations

import json
from typing import Any

# What any text may hold, and how many bytes each value more must have: a commit's have 20 to 30.
FREE_VALUES = 1_000_000
BYTES_PER_VALUE = 16


def parse(data: bytes) -> Any:
    """What the JSON text `data` says; raises as `check` does, ValueError too when it is none.

    RecursionError tells that it is nested too deep.
    """
    check(data)
    return json.loads(data)


def check(data: bytes) -> None:
    """Raise ValueError when `data` holds far more values than metadata of its size does.

    A text of empty lists takes twenty times its size.
    """
    # commas and brackets inside of strings count too, since nobody writes many of them
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > FREE_VALUES + len(data) // BYTES_PER_VALUE:
        raise ValueError(f"it holds {values} values in {len(data)} bytes, more than metadata does")

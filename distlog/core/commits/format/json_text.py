"""Parses JSON from storage in bounded memory, and gives an object a checksum as its last member."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from crc32c import crc32c

# What any text may hold, and how many bytes each value more must have: a commit's have 20 to 30.
FREE_VALUES = 1_000_000
BYTES_PER_VALUE = 16

_CHECKSUM = re.compile(rb',"crc32c":(\d{1,10})\}\n')


def write(body: Mapping[str, Any], default: Callable[[Any], Any]) -> bytes:
    """A line with the object `body`, whose last member is the CRC-32C of the bytes before it."""
    text = json.dumps(body, default=default, separators=(",", ":"), allow_nan=False)[:-1].encode()
    return text + b',"crc32c":%d}\n' % crc32c(text)


def check_sum(data: bytes) -> None:
    """Raise ValueError unless `data` ends with the checksum that `write` gives it."""
    checksum = _CHECKSUM.search(data, max(0, len(data) - 32))
    if not checksum or checksum.end() != len(data) or int(checksum[1]) != crc32c(data[: checksum.start()]):
        raise ValueError("its checksum is wrong")


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

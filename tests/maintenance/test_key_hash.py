"""Key hashes: SipHash-2-4 with 128 bits, against the vectors of its reference implementation and plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from siphash import SECRET, reference

from distlog.core.maintain.survivors import hash_keys

#: Published hashes, under SECRET, of the first bytes of 0, 1, 2, ... by their number.
VECTORS = {
    0: "a3817f04ba25a8e66df67214c7550293",
    1: "da87c1d86b99af44347659119b22fc45",
    2: "8177228da4a45dc7fca38bdef60affe4",
    3: "9c70b60c5267a94e5f33b6b02985ed51",
    4: "f88164c12d9c8faf7d0f6e7c7bcd5579",
    5: "1368875980776f8854527a07690e9627",
    6: "14eeca338b208613485ea0308fd7a15e",
    7: "a1f1ebbed8dbc153c0b84aa61ff08239",
    8: "3b62a9ba6258f5610f83e264f31497b4",
    9: "264499060ad9baabc47f8b02bb6d71ed",
    10: "00110dc378146956c95447d3f3d0fbba",
    11: "0151c568386b6677a2b4dc6f81e5dc18",
    12: "d626b266905ef35882634df68532c125",
    13: "9869e247e9c08b10d029934fc4b952f7",
    14: "31fcefac66d7de9c7ec7485fe4494902",
    15: "5493e99933b0a8117e08ec0f97cfc3d9",
    16: "6ee2a4ca67b054bbfd3315bf85230577",
    17: "473d06e8738db89854c066c47ae47740",
    23: "c9d184ddd5a9f5e0cf8ce29a9abf691c",
    24: "2db479ae78bd50d8882a8a178a6132ad",
    31: "2939b0183223fafc1723de4f52c43d35",
    32: "7c3956ca5eeafc3e363e9d556546eb68",
    33: "77c6077146f01c32b6b69d5f4ea9ffcf",
    47: "e61c432b720b19d18ec8d84bdc63151b",
    62: "5853542321f567a005d547a4f04759bd",
    63: "5150d1772f50834a503e069a973fbd7c",
}


def hashes(keys: list[bytes], secret: bytes = SECRET, prefix: bytes = b"", suffix: bytes = b"") -> list[str]:
    """Return the hashes in hexadecimal of adjacent keys between other bytes."""
    data = np.frombuffer(prefix + b"".join(keys) + suffix or b"\0", np.uint8)
    offsets = np.cumsum([0] + [len(key) for key in keys]).astype(np.int32)
    positions = offsets[:-1].astype(np.int64) + len(prefix)
    return [row.astype("<i8").tobytes().hex() for row in hash_keys(data, positions, offsets, secret)]


@pytest.mark.parametrize("size", VECTORS)
def test_published_hashes(size: int) -> None:
    key = bytes(range(size))
    assert reference(key) == VECTORS[size]
    assert hashes([key]) == [VECTORS[size]]


@pytest.mark.parametrize("size", [*range(50), 255, 256, 300])
def test_every_length_at_the_end_of_the_data_and_before_it(size: int) -> None:
    key = bytes(200 + number % 50 for number in range(size))
    assert hashes([key]) == hashes([key], prefix=b"\xff", suffix=b"\xff" * 8) == [reference(key)]


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=20), st.binary(min_size=16, max_size=16))
def test_it_is_siphash(keys: list[bytes], secret: bytes) -> None:
    assert hashes(keys, secret) == [reference(key, secret) for key in keys]


@pytest.mark.parametrize("secret", [b"", SECRET[1:], SECRET + b"\0"])
def test_a_secret_of_another_length_is_refused(secret: bytes) -> None:
    with pytest.raises(ValueError, match="a secret has 16 bytes"):
        hashes([b"key"], secret)

"""Key hashes: MurmurHash3_x64_128, against published values and against plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.kernels.key_hash import hash_keys

MASK = 2**64 - 1


def hashes(keys: list[bytes], before: bytes = b"", behind: bytes = b"") -> list[str]:
    """The hashes of keys that lie back to back between other bytes, in hexadecimal."""
    data = np.frombuffer(before + b"".join(keys) + behind or b"\0", np.uint8)
    offsets = np.cumsum([0] + [len(key) for key in keys]).astype(np.int32)
    positions = offsets[:-1].astype(np.int64) + len(before)
    return [row.astype(">i8").tobytes().hex() for row in hash_keys(data, positions, offsets)]


def reference(key: bytes) -> str:
    """MurmurHash3_x64_128 as its author wrote it."""

    def rotate(value: int, bits: int) -> int:
        return (value << bits | value >> 64 - bits) & MASK

    def finish(value: int) -> int:
        value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & MASK
        value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & MASK
        return value ^ value >> 33

    c1, c2 = 0x87C37B91114253D5, 0x4CF5AD432745937F
    h1 = h2 = 0
    whole = len(key) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = (int.from_bytes(key[at + i : at + i + 8], "little") for i in (0, 8))
        h1 = (rotate(h1 ^ rotate(k1 * c1 & MASK, 31) * c2 & MASK, 27) + h2) * 5 + 0x52DCE729 & MASK
        h2 = (rotate(h2 ^ rotate(k2 * c2 & MASK, 33) * c1 & MASK, 31) + h1) * 5 + 0x38495AB5 & MASK
    h1 ^= rotate(int.from_bytes(key[whole : whole + 8], "little") * c1 & MASK, 31) * c2 & MASK
    h2 ^= rotate(int.from_bytes(key[whole + 8 :], "little") * c2 & MASK, 33) * c1 & MASK
    h1, h2 = h1 ^ len(key), h2 ^ len(key)
    h1 = h1 + h2 & MASK
    h2 = h1 + h2 & MASK
    h1, h2 = finish(h1), finish(h2)
    h1 = h1 + h2 & MASK
    return f"{h1:016x}{h1 + h2 & MASK:016x}"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (b"hello, world", "342fac623a5ebc8e4cdcbc079642414d"),
        (b"The quick brown fox jumps over the lazy dog.", "cd99481f9ee902c9695da1a38987b6e7"),
    ],
)
def test_published_hashes(key: bytes, expected: str) -> None:
    assert reference(key) == expected
    assert hashes([key]) == [expected]


@pytest.mark.parametrize("size", range(50))
def test_every_length_at_the_end_of_the_data_and_before_it(size: int) -> None:
    key = bytes(range(200, 200 + size))
    assert hashes([key]) == hashes([key], before=b"\xff", behind=b"\xff" * 8) == [reference(key)]


@given(st.lists(st.binary(max_size=70), min_size=1, max_size=20))
def test_it_is_murmur3(keys: list[bytes]) -> None:
    assert hashes(keys) == [reference(key) for key in keys]

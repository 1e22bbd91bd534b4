"""Numbers and bytes as text: any number, and any bytes as Java shows them."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from distlog.core.kernels.native import kernel
from distlog.core.kernels.text import SLACK, put_base64, put_json_text, put_number, put_utf8

PIECES = [
    *(b"\xed\xa0\x80", b"\xed\xa0", b"\xc0\x80", b"\xe0\x80\x80", b"\xe0\xa0", b"\xf0\x90\x80", b"\xf5", b"\x80"),
    *(
        b"\xf4\x90\x80\x80",
        b"\xf4\x8f\xbf\xbf",
        b"\xc3\xa9",
        b"\xe2\x82\xac",
        b"\xf0\x9f\x98\x80",
        b"12345678",
        b'"\\\n',
    ),
]
BYTES = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=9))).map(b"".join)


@kernel
def number(out: np.ndarray, value: int) -> int:
    return put_number(out, 0, value)


@kernel
def utf8(out: np.ndarray, data: np.ndarray) -> int:
    return put_utf8(out, 0, data, 0, data.size)


@kernel
def json_text(out: np.ndarray, data: np.ndarray, strict: bool) -> tuple[int, bool]:
    return put_json_text(out, 0, data, 0, data.size, strict)


@kernel
def in_base64(out: np.ndarray, data: np.ndarray) -> int:
    return put_base64(out, 0, data, 0, data.size)


@given(st.integers(-(2**63), 2**63 - 1))
@example(0)
@example(-(2**63))
@example(2**63 - 1)
@example(10**18)
@example(10**18 - 1)
def test_a_number_is_written_in_decimal(value: int) -> None:
    out = np.zeros(20 + SLACK, np.uint8)
    # a column gives it so, and plain Python can do less with it than with its own numbers
    assert out[: number(out, np.int64(value))].tobytes() == str(value).encode()


def as_java_shows(data: bytes) -> str:
    """Java takes a surrogate in UTF-8, whole or cut off, for one character that it cannot read; Python for more."""
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xef\xbf\xbd", data).decode("utf-8", "replace")


@given(BYTES)
def test_bytes_are_written_as_java_shows_them(data: bytes) -> None:
    out, array = room_for(3, data), np.frombuffer(data, np.uint8)
    assert out[: utf8(out, array)].tobytes().decode() == as_java_shows(data)


@given(BYTES)
def test_bytes_are_written_as_json_and_it_is_told_whether_they_are_utf8(data: bytes) -> None:
    out, array = room_for(6, data), np.frombuffer(data, np.uint8)
    size, valid = json_text(out, array, False)
    shown = as_java_shows(data)
    assert json.loads(out[:size].tobytes()) == shown
    assert valid == (shown.encode() == data)
    size, still_valid = json_text(out, array, True)
    assert still_valid == valid
    assert not valid or json.loads(out[:size].tobytes()) == shown


@given(BYTES)
def test_bytes_are_written_as_base64(data: bytes) -> None:
    out, array = room_for(2, data), np.frombuffer(data, np.uint8)
    assert base64.b64decode(out[: in_base64(out, array)].tobytes(), validate=True) == data


def test_every_two_bytes_are_told_apart_wherever_they_stand() -> None:
    for first in range(256):
        data = b"".join(b"%c%c-" % (first, second) for second in range(256))
        out, array = room_for(6, data), np.frombuffer(data, np.uint8)
        assert out[: utf8(out, array)].tobytes().decode() == as_java_shows(data)
        assert json.loads(out[: json_text(out, array, False)[0]].tobytes()) == as_java_shows(data)


def room_for(growth: int, data: bytes) -> np.ndarray:
    """Room for what is made of `data` and what stands around it."""
    return np.zeros(growth * len(data) + 6 + SLACK, np.uint8)

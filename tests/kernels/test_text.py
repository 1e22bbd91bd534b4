"""Numbers and bytes as text: any number, and any bytes as Java shows them."""

from __future__ import annotations

import base64
import json
import re

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from distlog.core.kernels.native.jit import kernel
from distlog.core.kernels.text import is_utf8, put_base64, put_json_text, put_number, put_utf8

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
def json_text(out: np.ndarray, data: np.ndarray) -> int:
    return put_json_text(out, 0, data, 0, data.size)


@kernel
def in_base64(out: np.ndarray, data: np.ndarray) -> int:
    return put_base64(out, 0, data, 0, data.size)


@kernel
def valid(data: np.ndarray) -> bool:
    return is_utf8(data, 0, data.size)


@given(st.integers(-(2**63), 2**63 - 1))
@example(0)
@example(-(2**63))
@example(2**63 - 1)
@example(10**18)
@example(10**18 - 1)
def test_a_number_is_written_in_decimal(value: int) -> None:
    out = np.zeros(20, np.uint8)
    assert out[: number(out, value)].tobytes() == str(value).encode()


def as_java_shows(data: bytes) -> str:
    """Java takes a surrogate in UTF-8, whole or cut off, for one character that it cannot read; Python for more."""
    return re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xef\xbf\xbd", data).decode("utf-8", "replace")


@given(BYTES)
def test_bytes_are_written_as_java_shows_them(data: bytes) -> None:
    out, array = np.zeros(3 * len(data) + 1, np.uint8), np.frombuffer(data, np.uint8)
    assert out[: utf8(out, array)].tobytes().decode() == as_java_shows(data)


@given(BYTES)
def test_bytes_are_written_as_json_and_base64(data: bytes) -> None:
    out, array = np.zeros(6 * len(data) + 6, np.uint8), np.frombuffer(data, np.uint8)
    assert json.loads(out[: json_text(out, array)].tobytes()) == as_java_shows(data)
    assert base64.b64decode(out[: in_base64(out, array)].tobytes(), validate=True) == data


@given(BYTES)
def test_what_is_utf8_is_told_from_what_is_not(data: bytes) -> None:
    try:
        data.decode()
        expected = True
    except UnicodeDecodeError:
        expected = False
    assert valid(np.frombuffer(data, np.uint8)) == expected

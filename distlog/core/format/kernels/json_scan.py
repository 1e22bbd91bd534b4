"""Kernels that find fields of JSON objects (RFC 8259), one per line, without decoding their values."""

from __future__ import annotations

import numpy as np

from distlog.core.format.kernels.native import (
    called,  # a subroutine of kernels, compiled once per kernel
    copy_bytes,
    fill_kernel,
    inlined,  # a subroutine of kernels, inlined at each call
    int64_at,
    item_at,
    low_zeros,
    put_at,
)

#: The state of a line. A line that is UNSURE must be parsed or refused by a slower reader (Python's `json`).
OBJECT, BLANK, UNSURE = range(3)
#: The kind of a field. TEXT has no escapes. The bytes of an OTHER value are its JSON.
ABSENT, NULL, TEXT, ESCAPED, OTHER = range(5)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _POINT, _PLUS = b'"\\,:-.+'
_BEGIN_OBJECT, _END_OBJECT, _BEGIN_ARRAY, _END_ARRAY = b"{}[]"
_ZERO, _NINE, _SPACE, _TAB, _RETURN, _NEWLINE = b"09 \t\r\n"
_E, _F, _N, _T, _U = b"efntu"
_ESCAPES = np.array([byte in b'"\\/bfnrt' for byte in range(256)], np.bool_)
_HEX = np.array([byte in b"0123456789abcdefABCDEF" for byte in range(256)], np.bool_)
_LITERALS = np.frombuffer(b"truefalsenull", np.uint8)  # true at 0, false at 4, null at 9
#: The int64s whose 8 bytes are all 0x80, and all 1. The first is 0x8080808080808080 - 2**64, to fit in an int64.
_HIGH_BITS, _ONES = -0x7F7F7F7F7F7F7F80, 0x0101010101010101
#: A line with more levels is UNSURE, since `object_bits`, an int64, has a bit for each level.
_DEEPEST = 60
_FAILED = -1
#: The next token: a name; a name or `}`; a comma, `}` or `]`; a value or `]`; a value. In this order a name may come
#: up to _FIRST_NAME, `}` or `]` from _FIRST_NAME to _FIRST_ITEM, and a value from _FIRST_ITEM on (see `_scan_line`).
_NAME, _FIRST_NAME, _AFTER, _FIRST_ITEM, _VALUE = range(5)


@inlined
def _is_digit(data: np.ndarray, position: int, end: int) -> bool:
    return position < end and _ZERO <= item_at(data, position) <= _NINE


@inlined
def _after_space(data: np.ndarray, position: int, end: int) -> int:
    while position < end:
        byte = item_at(data, position)
        if byte != _SPACE and byte != _TAB and byte != _RETURN:
            break
        position += 1
    return position


@called
def _after_character(data: np.ndarray, position: int, end: int) -> int:
    """Return the position after a UTF-8 character that is not ASCII, or _FAILED if there is none."""
    first = item_at(data, position)
    size, low, high = 2, 0x80, 0xBF
    if first < 0xC2 or first > 0xF4:
        return _FAILED
    if first >= 0xF0:
        size = 4
        low = 0x90 if first == 0xF0 else 0x80
        high = 0x8F if first == 0xF4 else 0xBF
    elif first >= 0xE0:
        size = 3
        low = 0xA0 if first == 0xE0 else 0x80
        high = 0x9F if first == 0xED else 0xBF
    if position + size > end or not low <= item_at(data, position + 1) <= high:
        return _FAILED
    for index in range(position + 2, position + size):
        if item_at(data, index) & 0xC0 != 0x80:
            return _FAILED
    return position + size


@called
def _after_escape(data: np.ndarray, position: int, end: int) -> int:
    """Return the position after the escape that begins with the backslash at `position`, or _FAILED if it is bad."""
    if position + 2 > end:
        return _FAILED
    if item_at(_ESCAPES, item_at(data, position + 1)):
        return position + 2
    if item_at(data, position + 1) != _U or position + 6 > end:
        return _FAILED
    for index in range(position + 2, position + 6):
        if not item_at(_HEX, item_at(data, index)):
            return _FAILED
    return position + 6


@called
def _after_string(data: np.ndarray, position: int, end: int) -> tuple[int, bool]:
    """Return the position after the string whose text starts at `position`, and whether it has escapes."""
    has_escapes = False
    while position < end:
        if position + 8 <= end:
            # Find the first of 8 bytes that is a quote, a backslash or below 0x20 (the terms of `special`, in this
            # order), or not ASCII (the high bits of `word`). XOR makes a quote or backslash 0. `(x - _ONES) & ~x`
            # sets the high bit of the first byte that is 0; later bits may be wrong.
            word = int64_at(data, position)
            quotes = word ^ 0x2222222222222222
            escapes = word ^ 0x5C5C5C5C5C5C5C5C
            special = (quotes - _ONES) & ~quotes | (escapes - _ONES) & ~escapes | (word - 0x2020202020202020) & ~word
            zeros = low_zeros((special | word) & _HIGH_BITS)
            if zeros >= 64:
                position += 8
                continue
            position += zeros >> 3
        byte = item_at(data, position)
        if byte == _QUOTE:
            return position + 1, has_escapes
        if byte == _BACKSLASH:
            position = _after_escape(data, position, end)
            has_escapes = True
        elif byte >= 0x80:
            position = _after_character(data, position, end)
        elif byte < 0x20:
            position = _FAILED
        else:
            position += 1
        if position < 0:
            break
    return _FAILED, has_escapes


@called
def _after_number(data: np.ndarray, position: int, end: int) -> int:
    """Return the position after a number, or _FAILED if there is none."""
    if position < end and item_at(data, position) == _MINUS:
        position += 1
    if not _is_digit(data, position, end):
        return _FAILED
    if item_at(data, position) == _ZERO:
        position += 1
    else:
        while _is_digit(data, position, end):
            position += 1
    if position < end and item_at(data, position) == _POINT:
        position += 1
        if not _is_digit(data, position, end):
            return _FAILED
        while _is_digit(data, position, end):
            position += 1
    if position < end and (item_at(data, position) | 0x20) == _E:
        position += 1
        if position < end and (item_at(data, position) == _MINUS or item_at(data, position) == _PLUS):
            position += 1
        if not _is_digit(data, position, end):
            return _FAILED
        while _is_digit(data, position, end):
            position += 1
    return position


@inlined
def _after_literal(data: np.ndarray, position: int, end: int, literal: int, size: int) -> int:
    if position + size > end:
        return _FAILED
    for index in range(size):
        if item_at(data, position + index) != item_at(_LITERALS, literal + index):
            return _FAILED
    return position + size


@called
def _after_plain(data: np.ndarray, position: int, end: int) -> int:
    """Return the position after a number, true, false or null, or _FAILED if there is none."""
    byte = item_at(data, position)
    if byte == _T:
        return _after_literal(data, position, end, 0, 4)
    if byte == _F:
        return _after_literal(data, position, end, 4, 5)
    if byte == _N:
        return _after_literal(data, position, end, 9, 4)
    return _after_number(data, position, end)


@called
def _field_of(data: np.ndarray, position: int, size: int, names: np.ndarray, name_offsets: np.ndarray) -> int:
    """Return the number of the name at `position` among `names`, or -1."""
    for number in range(name_offsets.size - 1):
        begin = item_at(name_offsets, number)
        if item_at(name_offsets, number + 1) - begin != size:
            continue
        index = 0
        while index < size and item_at(names, begin + index) == item_at(data, position + index):
            index += 1
        if index == size:
            return number
    return -1


@called
def _after_name(
    data: np.ndarray, position: int, end: int, names: np.ndarray, name_offsets: np.ndarray, is_outer: bool
) -> tuple[int, int]:
    """Return the position after a name and its colon, and the number of the name among `names`, or -1.

    The position is _FAILED if there is no name and colon, or if a name of the outermost object has escapes.
    """
    after, has_escapes = _after_string(data, position + 1, end)
    if after < 0 or (is_outer and has_escapes):
        return _FAILED, -1
    field = _field_of(data, position + 1, after - position - 2, names, name_offsets) if is_outer else -1
    colon = _after_space(data, after, end)
    if colon >= end or item_at(data, colon) != _COLON:
        return _FAILED, -1
    return colon + 1, field


@called
def _after_leaf(data: np.ndarray, position: int, end: int) -> tuple[int, int]:
    """Return the position after a value that is not an object or array, or _FAILED if there is none, and its kind."""
    byte = item_at(data, position)
    if byte == _QUOTE:
        after, has_escapes = _after_string(data, position + 1, end)
        return after, ESCAPED if has_escapes else TEXT
    return _after_plain(data, position, end), NULL if byte == _N else OTHER


@inlined
def _put_field(
    kinds: np.ndarray, starts: np.ndarray, sizes: np.ndarray, slot: int, kind: int, start: int, end: int
) -> None:
    quote = 1 if TEXT <= kind <= ESCAPED else 0
    put_at(kinds, slot, kind)
    put_at(starts, slot, start + quote)
    put_at(sizes, slot, end - start - 2 * quote)


@called
def _scan_line(
    data: np.ndarray,
    position: int,
    end: int,
    names: np.ndarray,
    name_offsets: np.ndarray,
    first: int,
    kinds: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Return the state of the line [position, end), and put field i of `names` into slot `first` + i."""
    position = _after_space(data, position, end)
    if position == end:
        return BLANK
    if item_at(data, position) != _BEGIN_OBJECT:
        return UNSURE
    # the lowest bit of `object_bits` is 1 if the innermost open value is an object; the next bit is for its parent
    depth, object_bits, expected = 1, 1, _FIRST_NAME
    # `field` is the field of the next value, or -1. The value of `open_field`, an object or array, began at
    # `open_start`; one open field suffices, since only names of the outermost object have a field.
    field, open_field, open_start = -1, -1, 0
    position = _after_space(data, position + 1, end)
    while position < end:
        byte = item_at(data, position)
        if byte == _QUOTE and expected <= _FIRST_NAME:
            position, field = _after_name(data, position, end, names, name_offsets, depth == 1)
            if position < 0:
                return UNSURE
            expected = _VALUE
        elif byte == _COMMA and expected == _AFTER:
            position += 1
            expected = _NAME if object_bits & 1 else _VALUE
        elif _FIRST_NAME <= expected <= _FIRST_ITEM and byte == (_END_OBJECT if object_bits & 1 else _END_ARRAY):
            depth, position, object_bits = depth - 1, position + 1, object_bits >> 1
            expected = _AFTER
            if depth == 0:
                return OBJECT if _after_space(data, position, end) == end else UNSURE
            if depth == 1 and open_field >= 0:
                _put_field(kinds, starts, sizes, first + open_field, OTHER, open_start, position)
                open_field = -1
        elif expected < _FIRST_ITEM:
            return UNSURE  # no value may come here
        # `{` or `[`, whose codes differ by the bit 0x20
        elif (byte | 0x20) == _BEGIN_OBJECT:
            if depth == _DEEPEST:
                return UNSURE
            if field >= 0:
                open_field, open_start, field = field, position, -1
            is_object = byte == _BEGIN_OBJECT
            object_bits = (object_bits << 1) | (1 if is_object else 0)
            depth, position = depth + 1, position + 1
            expected = _FIRST_NAME if is_object else _FIRST_ITEM
        else:
            after, kind = _after_leaf(data, position, end)
            if after < 0:
                return UNSURE
            if field >= 0:
                _put_field(kinds, starts, sizes, first + field, kind, position, after)
            position, field, expected = after, -1, _AFTER
        position = _after_space(data, position, end)
    return UNSURE


@fill_kernel
def scan_objects(
    data: np.ndarray,
    names: np.ndarray,
    name_offsets: np.ndarray,
    line_starts: np.ndarray,
    line_sizes: np.ndarray,
    states: np.ndarray,
    kinds: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Find fields in each line of `data`; returns the number of lines.

    Name i is names[name_offsets[i]:name_offsets[i + 1]]. Fills `line_starts`, `line_sizes` (without a return)
    and `states` for each line. Fills `kinds`, `starts` and `sizes` for each line and name; `starts` and `sizes` are
    without quotes. If an object repeats a field, the last one applies. `kinds` must be zeros.
    """
    position = row = 0
    fields = name_offsets.size - 1
    while position <= data.size:
        end = position
        # find the next newline, 8 bytes at a time, as in `_after_string`
        while end < data.size and item_at(data, end) != _NEWLINE:
            if end + 8 <= data.size:
                word = int64_at(data, end) ^ 0x0A0A0A0A0A0A0A0A
                zeros = low_zeros((word - _ONES) & ~word & _HIGH_BITS)
                if zeros >= 64:
                    end += 8
                else:
                    end += zeros >> 3
            else:
                end += 1
        size = end - position
        if size and item_at(data, end - 1) == _RETURN:
            size -= 1
        put_at(line_starts, row, position)
        put_at(line_sizes, row, size)
        put_at(
            states,
            row,
            _scan_line(data, position, position + size, names, name_offsets, fields * row, kinds, starts, sizes),
        )
        row += 1
        position = end + 1
    return row


@fill_kernel
def gather(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
    """Copy byte strings of `data` to `out`, back to back; returns their total size."""
    position = 0
    for row in range(starts.size):
        size = item_at(sizes, row)
        copy_bytes(out, position, data, item_at(starts, row), size)
        position += size
    return position

"""Finds fields of JSON objects, one a line, by the grammar of RFC 8259, without making values of them."""

from __future__ import annotations

import numpy as np

from distlog.core.kernels.native import called, copy_bytes, fill_kernel, inlined, item_at, low_zeros, put_at, word_at

#: The state of a line: an object, nothing, or one for a slower reader to judge.
OBJECT, BLANK, UNSURE = range(3)
#: The kind of a field: not there, null, text, text with escapes, or another value, which has the bytes of its JSON.
ABSENT, NULL, TEXT, ESCAPED, OTHER = range(5)

_QUOTE, _BACKSLASH, _COMMA, _COLON, _MINUS, _POINT, _PLUS = b'"\\,:-.+'
_BEGIN_OBJECT, _END_OBJECT, _BEGIN_ARRAY, _END_ARRAY = b"{}[]"
_ZERO, _NINE, _SPACE, _TAB, _RETURN, _NEWLINE = b"09 \t\r\n"
_ESCAPES = np.array([byte in b'"\\/bfnrt' for byte in range(256)], np.bool_)
_HEX = np.array([byte in b"0123456789abcdefABCDEF" for byte in range(256)], np.bool_)
_WORDS = np.frombuffer(b"truefalsenull", np.uint8)
_HIGH_BITS, _ONES = -0x7F7F7F7F7F7F7F80, 0x0101010101010101
#: Deeper objects are for the slower reader: a bit of a word says for each level whether it is an object.
_DEEPEST = 60
_FAILED = -1
#: What may come next: a name, a name or the end of an object, a comma or an end, a value or the end, a value.
_NAME, _FIRST_NAME, _AFTER, _FIRST_ITEM, _VALUE = range(5)


@inlined
def _is_digit(data: np.ndarray, at: int, end: int) -> bool:
    return at < end and _ZERO <= item_at(data, at) <= _NINE


@inlined
def _after_space(data: np.ndarray, at: int, end: int) -> int:
    while at < end:
        byte = item_at(data, at)
        if byte != _SPACE and byte != _TAB and byte != _RETURN:
            break
        at += 1
    return at


@called
def _after_character(data: np.ndarray, at: int, end: int) -> int:
    """The position after a character of UTF-8 beyond ASCII; _FAILED if there is none."""
    first = item_at(data, at)
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
    if at + size > end or not low <= item_at(data, at + 1) <= high:
        return _FAILED
    for place in range(at + 2, at + size):
        if item_at(data, place) & 0xC0 != 0x80:
            return _FAILED
    return at + size


@called
def _after_escape(data: np.ndarray, at: int, end: int) -> int:
    """The position after an escape, which begins with the backslash at `at`; _FAILED if there is none."""
    if at + 2 > end:
        return _FAILED
    if item_at(_ESCAPES, item_at(data, at + 1)):
        return at + 2
    if item_at(data, at + 1) != 0x75 or at + 6 > end:
        return _FAILED
    for place in range(at + 2, at + 6):
        if not item_at(_HEX, item_at(data, place)):
            return _FAILED
    return at + 6


@called
def _after_string(data: np.ndarray, at: int, end: int) -> tuple[int, bool]:
    """The position after the quote that ends a string, and whether it has escapes; `at` is after its first quote."""
    has_escapes = False
    while at < end:
        if at + 8 <= end:
            word = word_at(data, at)
            quotes = word ^ 0x2222222222222222
            escapes = word ^ 0x5C5C5C5C5C5C5C5C
            special = (quotes - _ONES) & ~quotes | (escapes - _ONES) & ~escapes | (word - 0x2020202020202020) & ~word
            zeros = low_zeros((special | word) & _HIGH_BITS)
            if zeros >= 64:
                at += 8
                continue
            at += zeros >> 3
        byte = item_at(data, at)
        if byte == _QUOTE:
            return at + 1, has_escapes
        if byte == _BACKSLASH:
            at = _after_escape(data, at, end)
            has_escapes = True
        elif byte >= 0x80:
            at = _after_character(data, at, end)
        elif byte < 0x20:
            at = _FAILED
        else:
            at += 1
        if at < 0:
            break
    return _FAILED, has_escapes


@called
def _after_number(data: np.ndarray, at: int, end: int) -> int:
    """The position after a number; _FAILED if there is none."""
    if at < end and item_at(data, at) == _MINUS:
        at += 1
    if not _is_digit(data, at, end):
        return _FAILED
    if item_at(data, at) == _ZERO:
        at += 1
    else:
        while _is_digit(data, at, end):
            at += 1
    if at < end and item_at(data, at) == _POINT:
        at += 1
        if not _is_digit(data, at, end):
            return _FAILED
        while _is_digit(data, at, end):
            at += 1
    if at < end and item_at(data, at) | 0x20 == 0x65:
        at += 1
        if at < end and (item_at(data, at) == _MINUS or item_at(data, at) == _PLUS):
            at += 1
        if not _is_digit(data, at, end):
            return _FAILED
        while _is_digit(data, at, end):
            at += 1
    return at


@inlined
def _after_word(data: np.ndarray, at: int, end: int, word: int, size: int) -> int:
    if at + size > end:
        return _FAILED
    for index in range(size):
        if item_at(data, at + index) != item_at(_WORDS, word + index):
            return _FAILED
    return at + size


@called
def _after_plain(data: np.ndarray, at: int, end: int) -> int:
    """The position after a number, true, false or null; _FAILED if there is none."""
    byte = item_at(data, at)
    if byte == 0x74:
        return _after_word(data, at, end, 0, 4)
    if byte == 0x66:
        return _after_word(data, at, end, 4, 5)
    if byte == 0x6E:
        return _after_word(data, at, end, 9, 4)
    return _after_number(data, at, end)


@called
def _field_of(data: np.ndarray, at: int, size: int, names: np.ndarray, name_ends: np.ndarray) -> int:
    """The number of the name that is at `at`; -1 if it is none of `names`."""
    for number in range(name_ends.size - 1):
        begin = item_at(name_ends, number)
        if item_at(name_ends, number + 1) - begin != size:
            continue
        index = 0
        while index < size and item_at(names, begin + index) == item_at(data, at + index):
            index += 1
        if index == size:
            return number
    return -1


@called
def _after_name(
    data: np.ndarray, at: int, end: int, names: np.ndarray, name_ends: np.ndarray, is_outer: bool
) -> tuple[int, int]:
    """The position after a name and its colon, and the number of the name; _FAILED for a name with escapes too."""
    after, has_escapes = _after_string(data, at + 1, end)
    if after < 0 or (is_outer and has_escapes):
        return _FAILED, -1
    field = _field_of(data, at + 1, after - at - 2, names, name_ends) if is_outer else -1
    colon = _after_space(data, after, end)
    if colon >= end or item_at(data, colon) != _COLON:
        return _FAILED, -1
    return colon + 1, field


@called
def _after_leaf(data: np.ndarray, at: int, end: int) -> tuple[int, int]:
    """The position after a value that is no object or array, and its kind; _FAILED if there is none."""
    byte = item_at(data, at)
    if byte == _QUOTE:
        after, has_escapes = _after_string(data, at + 1, end)
        return after, ESCAPED if has_escapes else TEXT
    return _after_plain(data, at, end), NULL if byte == 0x6E else OTHER


@inlined
def _put_field(
    kinds: np.ndarray, starts: np.ndarray, sizes: np.ndarray, place: int, kind: int, start: int, end: int
) -> None:
    quote = 1 if TEXT <= kind <= ESCAPED else 0
    put_at(kinds, place, kind)
    put_at(starts, place, start + quote)
    put_at(sizes, place, end - start - 2 * quote)


@called
def _scan_line(
    data: np.ndarray,
    at: int,
    end: int,
    names: np.ndarray,
    name_ends: np.ndarray,
    first: int,
    kinds: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """The state of the line [at, end), whose fields are put from `first` on."""
    at = _after_space(data, at, end)
    if at == end:
        return BLANK
    if item_at(data, at) != _BEGIN_OBJECT:
        return UNSURE
    depth, objects, expected = 1, 1, _FIRST_NAME
    field, outer, outer_start = -1, -1, 0
    at = _after_space(data, at + 1, end)
    while at < end:
        byte = item_at(data, at)
        if byte == _QUOTE and expected <= _FIRST_NAME:
            at, field = _after_name(data, at, end, names, name_ends, depth == 1)
            if at < 0:
                return UNSURE
            expected = _VALUE
        elif byte == _COMMA and expected == _AFTER:
            at += 1
            expected = _NAME if objects & 1 else _VALUE
        elif byte == (_END_OBJECT if objects & 1 else _END_ARRAY) and _FIRST_NAME <= expected <= _FIRST_ITEM:
            depth, at, objects = depth - 1, at + 1, objects >> 1
            expected = _AFTER
            if depth == 0:
                return OBJECT if _after_space(data, at, end) == end else UNSURE
            if depth == 1 and outer >= 0:
                _put_field(kinds, starts, sizes, first + outer, OTHER, outer_start, at)
                outer = -1
        elif expected < _FIRST_ITEM:
            return UNSURE
        elif byte | 0x20 == _BEGIN_OBJECT:
            # or a bracket, which is 0x20 less
            if depth == _DEEPEST:
                return UNSURE
            if field >= 0:
                outer, outer_start, field = field, at, -1
            is_object = byte == _BEGIN_OBJECT
            objects = objects << 1 | (1 if is_object else 0)
            depth, at = depth + 1, at + 1
            expected = _FIRST_NAME if is_object else _FIRST_ITEM
        else:
            after, kind = _after_leaf(data, at, end)
            if after < 0:
                return UNSURE
            if field >= 0:
                _put_field(kinds, starts, sizes, first + field, kind, at, after)
            at, field, expected = after, -1, _AFTER
        at = _after_space(data, at, end)
    return UNSURE


@fill_kernel
def scan_objects(
    data: np.ndarray,
    names: np.ndarray,
    name_ends: np.ndarray,
    lines: np.ndarray,
    line_sizes: np.ndarray,
    states: np.ndarray,
    kinds: np.ndarray,
    starts: np.ndarray,
    sizes: np.ndarray,
) -> int:
    """Find fields in each line of `data`; returns how many lines there are.

    Name i is names[name_ends[i]:name_ends[i + 1]]. For each line its position, its size without a return at its end
    and its state are filled in; for each line and name the kind of the field, and where its bytes are: of a text
    those within the quotes. Of a field that an object has twice the last one counts. `kinds` must be zeros.
    """
    at = row = 0
    fields = name_ends.size - 1
    while at <= data.size:
        end = at
        while end < data.size and item_at(data, end) != _NEWLINE:
            if end + 8 <= data.size:
                word = word_at(data, end) ^ 0x0A0A0A0A0A0A0A0A
                zeros = low_zeros((word - _ONES) & ~word & _HIGH_BITS)
                if zeros >= 64:
                    end += 8
                else:
                    end += zeros >> 3
            else:
                end += 1
        size = end - at
        if size and item_at(data, end - 1) == _RETURN:
            size -= 1
        put_at(lines, row, at)
        put_at(line_sizes, row, size)
        put_at(states, row, _scan_line(data, at, at + size, names, name_ends, fields * row, kinds, starts, sizes))
        row += 1
        at = end + 1
    return row


@fill_kernel
def gather(data: np.ndarray, starts: np.ndarray, sizes: np.ndarray, out: np.ndarray) -> int:
    """Copy byte strings of `data` to `out`, back to back; returns their size."""
    at = 0
    for row in range(starts.size):
        size = item_at(sizes, row)
        copy_bytes(out, at, data, item_at(starts, row), size)
        at += size
    return at

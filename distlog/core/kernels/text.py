"""Writes numbers and bytes as text into an array of bytes."""

from __future__ import annotations

import numpy as np

from distlog.core.kernel_tuples import Layout, RecordContent, Slices, Texts
from distlog.core.kernels.native import (
    bits_of,
    copy_bytes,
    fill_kernel,
    inlined,
    item_at,
    low_zeros,
    put_at,
    word_at,
    wrapped,
)
from distlog.core.kernels.record_scan import VARINT, read_number

# ---
# Bytes as UTF-8, byte by byte without a branch: bytes of no character become U+FFFD, as in Java's `String`.
#
# There bytes that could begin a character count as one that cannot be read, and so do the three of a surrogate.


#: The state between characters; any other is within one.
BETWEEN = 0
#: The size of U+FFFD in UTF-8.
REPLACEMENT_BYTES = 3

_TAIL = (0x80, 0xBF)
_ONE_MORE, _TWO_MORE, _REST_OF_SURROGATE = 8, 9, 11
#: By state the bytes that may follow, as (first, last, next state).
_FOLLOWING = (
    (
        (0x00, 0x7F, BETWEEN),
        (0xC2, 0xDF, 1),
        (0xE0, 0xE0, 2),
        (0xE1, 0xEC, 3),
        (0xED, 0xED, 4),
        (0xEE, 0xEF, 3),
        (0xF0, 0xF0, 5),
        (0xF1, 0xF3, 6),
        (0xF4, 0xF4, 7),
    ),
    ((*_TAIL, BETWEEN),),
    ((0xA0, 0xBF, _ONE_MORE),),
    ((*_TAIL, _ONE_MORE),),
    ((0x80, 0x9F, _ONE_MORE), (0xA0, 0xBF, _REST_OF_SURROGATE)),
    ((0x90, 0xBF, _TWO_MORE),),
    ((*_TAIL, _TWO_MORE),),
    ((0x80, 0x8F, _TWO_MORE),),
    ((*_TAIL, BETWEEN),),
    ((*_TAIL, 10),),
    ((*_TAIL, BETWEEN),),
    ((*_TAIL, BETWEEN),),
)
#: The size of the character that ends in a state.
_SIZES = (1, 2, 0, 0, 0, 0, 0, 0, 3, 0, 4, 0)


def _transition(state: int, byte: int) -> tuple[int, int, int]:
    """The next state, how often U+FFFD is written, and behind it how many of the last bytes."""
    for first, last, following in _FOLLOWING[state]:
        if first <= byte <= last:
            ends = following == BETWEEN
            return following, int(ends and state == _REST_OF_SURROGATE), _SIZES[state] if ends else 0
    if state == BETWEEN:
        return BETWEEN, 1, 0
    following, replaced, size = _transition(BETWEEN, byte)
    return following, replaced + 1, size


def _transitions() -> np.ndarray:
    """For each state and byte: the next state, and from bit 4 and 6 on the two numbers of `_transition`."""
    found = np.zeros((len(_FOLLOWING), 256), np.int16)
    for state in range(len(_FOLLOWING)):
        for byte in range(256):
            following, replaced, size = _transition(state, byte)
            found[state, byte] = following | replaced << 4 | size << 6
    return found.ravel()


_TRANSITIONS = _transitions()
_REPLACEMENTS = np.frombuffer(2 * "\ufffd".encode() + bytes(2), np.uint8)


@inlined
def put_replacement(out: np.ndarray, at: int) -> int:
    """Write U+FFFD, and some bytes behind it that do not count; returns the position after it."""
    copy_bytes(out, at, _REPLACEMENTS, 0, 8)
    return at + REPLACEMENT_BYTES


@inlined
def put_byte(out: np.ndarray, at: int, data: np.ndarray, position: int, state: int) -> tuple[int, int, int]:
    """Take the byte at `position`: (the position in `out`, the next state, how many were replaced by U+FFFD).

    A character is written with its last byte. Up to 8 bytes behind it are overwritten.
    """
    entry = item_at(_TRANSITIONS, state << 8 | item_at(data, position))
    replaced = entry >> 4 & 3
    copy_bytes(out, at, _REPLACEMENTS, 0, 8)
    at += REPLACEMENT_BYTES * replaced
    size = entry >> 6
    start = position + 1 - size
    if start + 4 <= data.size:
        copy_bytes(out, at, data, start, 4)
    else:
        for index in range(size):
            put_at(out, at + index, item_at(data, start + index))
    return at + size, entry & 15, replaced


# ---
# Nothing is checked here: the caller makes the array large enough, with SLACK bytes behind all that is written,
# since much is written in words.


#: The most bytes that `put_number` writes.
LONGEST_NUMBER = 20
#: The most bytes that `put_utf8`, `put_json_text`, `put_shown` and `put_quoted` write for each byte that they read.
UTF8_GROWTH, JSON_GROWTH, SHOWN_GROWTH, QUOTED_GROWTH = 3, 6, 4, 2
#: How many bytes are overwritten behind the text.
SLACK = 8

_MINUS, _ZERO, _QUOTE, _BACKSLASH = b'-0"\\'
_PAIRS = np.frombuffer(b"".join(b"%02d" % number for number in range(100)), np.uint8)
_POWERS = 10 ** np.arange(19, dtype=np.int64)
_BASE64 = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
#: Two digits of base64 for each value of 12 bits.
_BASE64_PAIRS = np.frombuffer(bytes(digit for a in _BASE64 for b in _BASE64 for digit in (a, b)), np.uint8)
#: Bit 7, and bit 0, of each of eight bytes.
_HIGH_BITS, _ONES = -0x7F7F7F7F7F7F7F80, 0x0101010101010101


def _escaped(byte: int) -> bytes:
    """A character of ASCII as it stands in a JSON string."""
    if byte in (_QUOTE, _BACKSLASH):
        return bytes((_BACKSLASH, byte))
    return _NAMED.get(byte, b"\\u%04x" % byte) if byte < 32 else bytes((byte,))


def _shown(byte: int) -> bytes:
    """A byte as it stands in a line of text if it is a control character or no UTF-8."""
    return _NAMED[byte] if byte in b"\t\n\r" else b"\\x%02x" % byte


_NAMED = {8: b"\\b", 9: b"\\t", 10: b"\\n", 12: b"\\f", 13: b"\\r"}
_ESCAPED = np.frombuffer(b"".join(_escaped(byte).ljust(8, b"\0") for byte in range(128)), np.uint8)
_ESCAPED_SIZES = np.array([len(_escaped(byte)) for byte in range(128)], np.uint8)
_SHOWN = np.frombuffer(b"".join(_shown(byte).ljust(8, b"\0") for byte in range(256)), np.uint8)
_SHOWN_SIZES = np.array([len(_shown(byte)) for byte in range(256)], np.uint8)
_DELETE = 127


@inlined
def put_text(out: np.ndarray, at: int, text: np.ndarray, start: int, size: int) -> int:
    """Copy a short text, which has SLACK bytes behind it; returns the position after it."""
    for index in range(0, size, 8):
        copy_bytes(out, at + index, text, start + index, 8)
    return at + size


@inlined
def put_number(out: np.ndarray, at: int, value: int) -> int:
    """Write `value` in decimal; returns the position after it."""
    rest = value
    last = -1
    if value < 0:
        put_at(out, at, _MINUS)
        at += 1
        # the smallest value has no positive counterpart, so its last digit is taken off first
        last = -(value % -10)
        rest = value // -10
    if rest or last < 0:
        # 1233 / 4096 is close enough to the logarithm of 2
        size = bits_of(rest) * 1233 >> 12
        size += rest >= item_at(_POWERS, size)
        size = max(size, 1)
        place = at + size
        at = place
        while rest >= 100:
            place -= 2
            copy_bytes(out, place, _PAIRS, 2 * (rest % 100), 2)
            rest //= 100
        if rest >= 10:
            copy_bytes(out, place - 2, _PAIRS, 2 * rest, 2)
        else:
            put_at(out, place - 1, _ZERO + rest)
    if last >= 0:
        put_at(out, at, _ZERO + last)
        at += 1
    return at


_MINUTE, _HOUR, _DAY = 60_000, 3_600_000, 86_400_000
#: The begin of the year 1, and the end of the year 9999, in ms since 1970.
_FIRST_YEAR, _LAST_YEAR = -62_135_596_800_000, 253_402_300_800_000
_NO_TIME = np.frombuffer(b"none\0\0\0\0", np.uint8)
_TIME = np.frombuffer(b"0000-00-00T00:00:00.000Z", np.uint8)


@inlined
def put_time(out: np.ndarray, at: int, time_ms: int) -> int:
    """Write ms since 1970 as ISO 8601 in UTC, as `times.iso` has it; returns the position after it.

    The calendar is Howard Hinnant's `civil_from_days`, in which a year begins in March.
    """
    if time_ms == -1:
        return put_text(out, at, _NO_TIME, 0, 4)
    if not _FIRST_YEAR <= time_ms < _LAST_YEAR:
        return put_number(out, at, time_ms)
    days = time_ms // _DAY + 719_468
    era = days // 146_097
    day = days - era * 146_097
    year = (day - day // 1460 + day // 36_524 - day // 146_096) // 365
    day -= 365 * year + year // 4 - year // 100
    month = (5 * day + 2) // 153
    day -= (153 * month + 2) // 5
    month += 3 if month < 10 else -9
    year += 400 * era + (month <= 2)
    rest = time_ms % _DAY
    copy_bytes(out, at, _TIME, 0, 24)
    copy_bytes(out, at, _PAIRS, 2 * (year // 100), 2)
    copy_bytes(out, at + 2, _PAIRS, 2 * (year % 100), 2)
    copy_bytes(out, at + 5, _PAIRS, 2 * month, 2)
    copy_bytes(out, at + 8, _PAIRS, 2 * (day + 1), 2)
    copy_bytes(out, at + 11, _PAIRS, 2 * (rest // _HOUR), 2)
    copy_bytes(out, at + 14, _PAIRS, 2 * (rest % _HOUR // _MINUTE), 2)
    copy_bytes(out, at + 17, _PAIRS, 2 * (rest % _MINUTE // 1000), 2)
    put_at(out, at + 20, _ZERO + rest % 1000 // 100)
    copy_bytes(out, at + 21, _PAIRS, 2 * (rest % 100), 2)
    return at + 24


@inlined
def put_utf8(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes as UTF-8, with U+FFFD in place of invalid bytes; returns the position after them."""
    end = position + size
    state = BETWEEN
    while position < end:
        if state == BETWEEN and position + 8 <= data.size and word_at(data, position) & _HIGH_BITS == 0:
            copy_bytes(out, at, data, position, 8)
            count = min(8, end - position)
            position += count
            at += count
            continue
        stop = min(position + 8, end)
        while position < stop:
            at, state, _ = put_byte(out, at, data, position, state)
            position += 1
    return at if state == BETWEEN else put_replacement(out, at)


@inlined
def _below(word: int, bound: int) -> int:
    # the high bit of each byte that is below `bound`, up to 128; also of some bytes behind the first of these
    return int(wrapped(word - bound * _ONES) & ~word & _HIGH_BITS)


@inlined
def _plain_bytes(word: int, one: int, other: int) -> int:
    """Count the bytes, of eight, up to the first that is not ASCII, a control, or `one` or the `other` character."""
    escaped = _below(word, 32) | _below(word ^ one * _ONES, 1) | _below(word ^ other * _ONES, 1)
    return int(low_zeros(escaped | word & _HIGH_BITS) >> 3)


@inlined
def put_json_text(
    out: np.ndarray, at: int, data: np.ndarray, position: int, size: int, strict: bool
) -> tuple[int, bool]:
    """Write bytes as a JSON string: the position after it, and whether they are UTF-8.

    Invalid bytes become U+FFFD, or, if `strict`, end the work: then the bytes written are of no use.
    """
    put_at(out, at, _QUOTE)
    at += 1
    end = position + size
    valid = True
    while position < end and (valid or not strict):
        if position + 8 <= data.size:
            copy_bytes(out, at, data, position, 8)
            count = min(_plain_bytes(word_at(data, position), _QUOTE, _BACKSLASH), end - position)
            position += count
            at += count
            if count == 8 or position == end:
                continue
        state = BETWEEN
        byte = item_at(data, position)
        if byte < 128:
            copy_bytes(out, at, _ESCAPED, 8 * byte, 8)
            at += item_at(_ESCAPED_SIZES, byte)
            position += 1
        while position < end and item_at(data, position) >= 128:
            at, state, replaced = put_byte(out, at, data, position, state)
            valid &= replaced == 0
            position += 1
        if state != BETWEEN:
            at = put_replacement(out, at)
            valid = False
    put_at(out, at, _QUOTE)
    return at + 1, valid


@inlined
def put_base64(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes in base64 (RFC 4648); returns the position after them."""
    end = position + size
    while position < end:
        group = item_at(data, position) << 16
        if position + 1 < end:
            group |= item_at(data, position + 1) << 8
        if position + 2 < end:
            group |= item_at(data, position + 2)
        copy_bytes(out, at, _BASE64_PAIRS, 2 * (group >> 12), 2)
        copy_bytes(out, at + 2, _BASE64_PAIRS, 2 * (group & 0xFFF), 2)
        position += 3
        at += 4
    for index in range(position - end):
        put_at(out, at - 1 - index, 61)
    return at


@inlined
def _size_of_character(data: np.ndarray, position: int, end: int) -> int:
    """The size of the character at `position`; 0 if there is none in UTF-8."""
    state = BETWEEN
    while position < end:
        entry = item_at(_TRANSITIONS, state << 8 | item_at(data, position))
        state = entry & 15
        if state == BETWEEN:
            return int(entry >> 6 if entry >> 4 & 3 == 0 else 0)
        if entry >> 4 & 3:
            return 0
        position += 1
    return 0


@inlined
def put_shown(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes as one line for people, as `display.text` has them; returns the position after them."""
    end = position + size
    while position < end:
        if position + 8 <= data.size:
            copy_bytes(out, at, data, position, 8)
            count = min(_plain_bytes(word_at(data, position), _DELETE, _DELETE), end - position)
            position += count
            at += count
            if count == 8 or position == end:
                continue
        count = _size_of_character(data, position, end)
        last = item_at(data, position + max(count, 1) - 1)
        # 2 bytes: the controls from U+0080 to U+009F begin with C2
        is_control = count == 1 and (last < 32 or last == _DELETE)
        is_control |= count == 2 and item_at(data, position) == 0xC2 and last < 0xA0
        if count == 0 or is_control:
            copy_bytes(out, at, _SHOWN, 8 * last, 8)
            at += item_at(_SHOWN_SIZES, last)
        else:
            copy_bytes(out, at, data, position, count)
            at += count
        position += max(count, 1)
    return at


@inlined
def put_quoted(out: np.ndarray, at: int, data: np.ndarray, position: int, size: int) -> int:
    """Write bytes with each quote twice, as CSV has them (RFC 4180); returns the position after them."""
    end = position + size
    while position < end:
        if position + 32 <= end:
            quotes = 0
            for word in range(0, 32, 8):
                quotes |= _below(word_at(data, position + word) ^ _QUOTE * _ONES, 1)
            if quotes == 0:
                copy_bytes(out, at, data, position, 32)
                at += 32
                position += 32
                continue
        if position + 8 <= data.size:
            copy_bytes(out, at, data, position, 8)
            quotes = _below(word_at(data, position) ^ _QUOTE * _ONES, 1)
            count = min(int(low_zeros(quotes) >> 3), end - position)
            position += count
            at += count
            if count == 8 or position == end:
                continue
        byte = item_at(data, position)
        put_at(out, at, byte)
        at += 1
        if byte == _QUOTE:
            put_at(out, at, byte)
            at += 1
        position += 1
    return at


# ---
# Writes lines of named values: numbers, words, and bytes in several forms.


#: The value of an absent number, and the position of absent bytes.
ABSENT = -(2**63)
#: Kinds of values. A choice has its number among the texts as its value; bytes have their position and their size.
#: Bytes are UTF-8 as Java has it, a JSON string or base64, for people, for CSV, or as they are.
NUMBER, OPTIONAL, CHOICE, TIME, UTF8, JSON, SHOWN, QUOTED, RAW = range(9)
#: The most bytes that are written for a byte, by kind.
GROWTH = (0, 0, 0, 0, UTF8_GROWTH, JSON_GROWTH, SHOWN_GROWTH, QUOTED_GROWTH, 1)
#: Texts of a record of a dump, by their number.
HEADERS, HEADERS_END, KEY, PAYLOAD, BASE64, BASE64_END, END = range(7)

_COMMA = 44


@inlined
def _put_text(out: np.ndarray, at: int, texts: Texts, index: int) -> int:
    start: int = item_at(texts.ends, index)
    return put_text(out, at, texts.text, start, item_at(texts.ends, index + 1) - start)


@inlined
def _put_bytes(
    out: np.ndarray, at: int, kind: int, data: np.ndarray, position: int, size: int, words: Texts, base64: int
) -> int:
    """Write bytes in the form of `kind`; those that are no text for JSON between the words `base64` and its next."""
    if kind == UTF8:
        return put_utf8(out, at, data, position, size)
    if kind == SHOWN:
        return put_shown(out, at, data, position, size)
    if kind == QUOTED:
        return put_quoted(out, at, data, position, size)
    if kind == RAW:
        copy_bytes(out, at, data, position, size)
        return at + size
    end, valid = put_json_text(out, at, data, position, size, True)
    if valid:
        return end
    at = _put_text(out, at, words, base64)
    at = put_base64(out, at, data, position, size)
    return _put_text(out, at, words, base64 + 1)


@inlined
def _put_value(out: np.ndarray, at: int, kind: int, value: int, words: Texts, first: int) -> int:
    if kind == NUMBER:
        return put_number(out, at, value)
    if kind == CHOICE:
        return _put_text(out, at, words, first + value)
    if value == ABSENT:
        return _put_text(out, at, words, first)
    at = _put_text(out, at, words, first + 1)
    at = put_time(out, at, value) if kind == TIME else put_number(out, at, value)
    return _put_text(out, at, words, first + 2)


@inlined
def _put_row(out: np.ndarray, at: int, layout: Layout, values: np.ndarray, row: int) -> int:
    """Write values none of which are bytes."""
    for column in range(layout.kinds.size):
        at = _put_text(out, at, layout.labels, column)
        kind, first = item_at(layout.kinds, column), item_at(layout.first, column)
        at = _put_value(out, at, kind, values[column, row], layout.words, first)
    return at


@fill_kernel
def write_rows(
    out: np.ndarray, ends: np.ndarray, layout: Layout, values: np.ndarray, data: np.ndarray, more: np.ndarray
) -> int:
    """Write a line for each column of `values`, which has the rows of `layout`; returns its bytes.

    Bytes are at their positions in `data`, or, where ~position is not below 0, there in `more`. The end of each line
    is written to `ends`, which may be empty.
    """
    at = 0
    for row in range(values.shape[1]):
        for column in range(layout.kinds.size):
            at = _put_text(out, at, layout.labels, column)
            place, first = item_at(layout.rows, column), item_at(layout.first, column)
            value, kind = values[place, row], item_at(layout.kinds, column)
            if kind < UTF8 or value == ABSENT:
                at = _put_value(out, at, kind, value, layout.words, first)
                continue
            at = _put_text(out, at, layout.words, first + 1)
            source = data if value >= 0 else more
            position, size = max(value, ~value), values[place + 1, row]
            at = _put_bytes(out, at, kind, source, position, size, layout.words, first + 3)
            at = _put_text(out, at, layout.words, first + 2)
        if ends.size:
            put_at(ends, row, at)
    return at


@inlined
def _put_content(
    out: np.ndarray, at: int, kind: int, content: RecordContent, part: Slices, row: int, texts: Texts
) -> int:
    size = item_at(part.offsets, row + 1) - item_at(part.offsets, row)
    return _put_bytes(out, at, kind, content.data, item_at(part.positions, row), size, texts, BASE64)


@inlined
def _put_header_keys(out: np.ndarray, at: int, content: RecordContent, place: int, texts: Texts) -> int:
    data = content.data
    as_json = item_at(texts.ends, BASE64) < item_at(texts.ends, BASE64 + 1)
    count, position = read_number(data, item_at(content.headed.positions, place), data.size, VARINT, True)
    for number in range(count):
        if number:
            put_at(out, at, _COMMA)
            at += 1
        size, position = read_number(data, position, data.size, VARINT, True)
        if as_json:
            at, _ = put_json_text(out, at, data, position, size, False)
        else:
            at = put_utf8(out, at, data, position, size)
        size, position = read_number(data, position + size, data.size, VARINT, True)
        position += max(size, 0)
    return at


@fill_kernel
def write_records(
    out: np.ndarray,
    batch: Layout,
    batches: np.ndarray,
    counts: np.ndarray,
    record: Layout,
    records: np.ndarray,
    marker: Layout,
    markers: np.ndarray,
    content: RecordContent,
    shown: np.ndarray,
    texts: Texts,
) -> int:
    """Write a line for each batch, and behind it one for each of its `counts` records; returns their bytes.

    `batches`, `records` and `markers` are values as `write_rows` takes them. A record whose `markers` are not absent
    is a control record. The header keys are written if `headed` has room, and the keys and payloads of data if
    `shown` has their kind.
    """
    at = 0
    row = 0
    place = 0
    for number in range(counts.size):
        at = _put_row(out, at, batch, batches, number)
        for _ in range(item_at(counts, number)):
            at = _put_row(out, at, record, records, row)
            if content.headed.records.size:
                at = _put_text(out, at, texts, HEADERS)
                if item_at(content.headed.records, place) == row:
                    at = _put_header_keys(out, at, content, place, texts)
                    place += 1
                at = _put_text(out, at, texts, HEADERS_END)
            is_control = markers.size and markers[0, row] != ABSENT
            if is_control:
                at = _put_row(out, at, marker, markers, row)
            elif shown.size:
                if item_at(content.key.valid, row):
                    at = _put_text(out, at, texts, KEY)
                    at = _put_content(out, at, item_at(shown, 0), content, content.key, row, texts)
                if item_at(content.value.valid, row):
                    at = _put_text(out, at, texts, PAYLOAD)
                    at = _put_content(out, at, item_at(shown, 0), content, content.value, row, texts)
            at = _put_text(out, at, texts, END)
            row += 1
    return at

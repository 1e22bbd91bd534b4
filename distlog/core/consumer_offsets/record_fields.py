"""The fields of Kafka's own records (of groups, positions and transactions): numbers, texts and bytes."""

from __future__ import annotations

import struct

from distlog.core.errors import CorruptRecordError


class FieldReader:
    """Fields one after the other; raises CorruptRecordError when the bytes end too early.

    `what` they are, of which `topic`, is told then. Newer versions of a message are flexible (KIP-482): lengths are
    varints, and fields with tags come last.
    """

    def __init__(self, data: bytes, what: str, topic: str) -> None:
        self._data, self._at, self._what, self._topic = data, 0, what, topic
        self.is_flexible = False

    def number(self, form: str) -> int:
        """The next number, of this `struct` form."""
        size = struct.calcsize(form)
        return int(struct.unpack(form, self._taken(size))[0])

    def text(self) -> str:
        """The next text."""
        found = self.nullable_text()
        if found is None:
            raise self._corrupt("a text is missing")
        return found

    def nullable_text(self) -> str | None:
        """The next text, or None."""
        size = self._varint() - 1 if self.is_flexible else self.number(">h")
        if size < 0:
            return None
        try:
            return self._taken(size).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._corrupt("a text is not UTF-8") from error

    def count(self) -> int:
        """How many elements of an array come next; -1 for None."""
        return self._varint() - 1 if self.is_flexible else self.number(">i")

    def skip_tags(self) -> None:
        """Go behind the fields with tags, where the version has them."""
        for _ in range(self._varint() if self.is_flexible else 0):
            self._varint()
            self._taken(self._varint())

    def _varint(self) -> int:
        """An unsigned number of at most five bytes, the lowest seven bits first."""
        found = 0
        for shift in range(0, 35, 7):
            byte = self._taken(1)[0]
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found
        raise self._corrupt("a varint does not end")

    def blob(self) -> bytes:
        """The next bytes."""
        return self._taken(self.number(">i"))

    def _taken(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self._corrupt(f"{size} bytes are missing at position {self._at}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _corrupt(self, why: str) -> CorruptRecordError:
        return CorruptRecordError(f"not {self._what} of {self._topic}: {why}")


def text_field(value: str | None) -> bytes:
    """The bytes of a text, or of None."""
    if value is None:
        return struct.pack(">h", -1)
    data = value.encode("utf-8")
    return struct.pack(">h", len(data)) + data

"""A part: where bytes of a segment lie, in a file of their own or within a larger object."""

from __future__ import annotations

from typing import NamedTuple


class Part(NamedTuple):
    """Bytes [begin, begin + size) of the object `name`; if it `is_file`, the object is this part and nothing more.

    Readers count positions from the part's first byte. Positions in errors are those of the object.
    """

    name: str
    begin: int
    size: int
    is_file: bool

    @classmethod
    def file(cls, name: str, size: int) -> Part:
        """The part that is the whole file `name`."""
        return cls(name, 0, size, is_file=True)

    def range(self, start: int, end: int) -> tuple[str, int, int]:
        """Bytes [start, end) of the part, as (name, start, end) of its object."""
        return self.name, self.begin + start, self.begin + end

    @property
    def whole(self) -> tuple[str, int, int]:
        """All bytes of the part, as (name, start, end) of its object."""
        return self.range(0, self.size)

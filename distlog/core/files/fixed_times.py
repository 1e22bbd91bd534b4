"""Times of texts of one length, in columns: what `strptime` would read one by one."""

from __future__ import annotations

import calendar
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core.arrays import integers

#: The digits of a directive, and its least and largest value. `%f` has those that the others leave.
_NUMBERS = {"Y": (4, 1970, 9999), "m": (2, 1, 12), "d": (2, 1, 31), "H": (2, 0, 23), "M": (2, 0, 59), "S": (2, 0, 59)}
_WIDTHS = {name: width for name, (width, _, _) in _NUMBERS.items()} | {"b": 3, "z": 5}
_MINUTE_MS, _DAY_MS = 60_000, 86_400_000
_ZERO = ord("0")


@dataclass(frozen=True, slots=True)
class FixedTimes:
    """A format whose directives have fixed widths, with four digits of the year."""

    parts: Sequence[str]

    @classmethod
    @lru_cache
    def of(cls, form: str) -> FixedTimes | None:
        """The format, or None for one that only `strptime` reads."""
        parts = re.findall(r"%.|[^%]", form, re.DOTALL)
        names = [part[1] for part in parts if len(part) == 2]
        is_known = form.isascii() and {*names} <= {*_WIDTHS, "f"} and len({*names}) == len(names)
        # digits after a fraction or a zone may belong to either
        if not is_known or "Y" not in names or {"m", "b"} <= {*names} or re.search(r"%f[%0-9]|%z[%0-9:]", form):
            return None
        return cls(tuple(parts))

    def read(self, texts: pa.Array) -> pa.Array | None:
        """Milliseconds since 1970 of texts (binary); None unless all have one length and are times since then."""
        count = len(texts)
        if not count or texts.null_count:
            return None
        ends = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + count + 1]
        size = int(ends[1] - ends[0])
        fraction = size - sum(_WIDTHS.get(part[1:], 0) if len(part) == 2 else 1 for part in self.parts)
        has_its_width = 1 <= fraction <= 6 if "%f" in self.parts else fraction == 0
        if not has_its_width or (np.diff(ends) != size).any():
            return None
        data = np.frombuffer(texts.buffers()[2], np.uint8)[ends[0] : ends[-1]].reshape(count, size)
        moments, good = self._moments(data, fraction)
        return integers(moments) if good.all() else None

    def _moments(
        self, data: npt.NDArray[np.uint8], fraction: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        digits_by_part, good, position = dict[str, npt.NDArray[np.int64]](), np.ones(len(data), np.bool_), 0
        for part in self.parts:
            name = part[1:]
            width = 1 if len(part) == 1 else fraction if name == "f" else _WIDTHS[name]
            column = data[:, position : position + width]
            position += width
            if len(part) == 1:
                good &= column[:, 0] == ord(part)
            elif name == "b":
                digits_by_part["m"] = _months(column)
                good &= digits_by_part["m"] > 0
            elif name == "z":
                hours, minutes = _number(column[:, 1:3], good), _number(column[:, 3:], good)
                good &= np.isin(column[:, 0], (ord("+"), ord("-"))) & (hours < 24) & (minutes < 60)
                digits_by_part["z"] = np.where(column[:, 0] == ord("-"), -1, 1) * (hours * 60 + minutes)
            else:
                digits_by_part[name] = _number(column, good)
                _, least, largest = _NUMBERS.get(name, (0, 0, 10**6))
                good &= (digits_by_part[name] >= least) & (digits_by_part[name] <= largest)
        # scalars stand for what the format leaves out
        zeros, ones = np.int64(0), np.int64(1)
        months = (
            (np.where(good, digits_by_part["Y"], 1970) - 1970) * 12
            + np.where(good, digits_by_part.get("m", ones), 1)
            - 1
        )
        begins = months.astype("datetime64[M]").astype("datetime64[D]")
        days = begins + (digits_by_part.get("d", ones) - 1)
        good &= days.astype("datetime64[M]").astype(np.int64) == months
        minutes = (
            digits_by_part.get("H", zeros) * 60 + digits_by_part.get("M", zeros) - digits_by_part.get("z", zeros)
        )
        ms = digits_by_part.get("S", zeros) * 1000 + digits_by_part.get("f", zeros) * 1000 // 10**fraction
        moments = days.astype(np.int64) * _DAY_MS + minutes * _MINUTE_MS + ms
        return moments, good & (moments >= 0)


def _number(digits: npt.NDArray[np.uint8], good: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """The number that columns of digits make; `good` becomes False where they are none."""
    number = np.zeros(len(digits), np.int64)
    for column in digits.T:
        digit = column.astype(np.int64) - _ZERO
        good &= (digit >= 0) & (digit <= 9)
        number = number * 10 + digit
    return number


def _months(names: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The numbers of months by their short names, in any case; 0 for no month of three ASCII letters."""
    numbers = np.zeros(len(names), np.int64)
    for number, name in enumerate(calendar.month_abbr):
        encoded = name.lower().encode()
        if len(encoded) == 3 and encoded.isalpha():
            numbers[((names | 0x20) == np.frombuffer(encoded, np.uint8)).all(axis=1)] = number
    return numbers

"""Checks the integers that callers give."""

from __future__ import annotations

import operator
from collections.abc import Iterable

from distlog.core.errors import InvalidConfigError


def whole_number(name: str, value: object) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise InvalidConfigError(f"{name} must be a whole number", value=repr(value))


def count_of(name: str, value: object) -> int:
    if (number := whole_number(name, value)) < 0:
        raise InvalidConfigError(f"{name} must be 0 or more", value=number)
    return number


def whole_numbers(name: str, values: object) -> list[int]:
    if isinstance(values, Iterable) and not isinstance(values, str):
        return [whole_number(name, value) for value in values]
    return [whole_number(name, values)]


MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MIN_LONG = -(2**63)

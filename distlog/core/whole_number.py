"""Checks the whole numbers that callers give."""

from __future__ import annotations

import operator

from distlog.core.errors import InvalidConfigError


def whole_number(name: str, value: object) -> int:
    """`value`, an integer of Python or numpy, as an int; InvalidConfigError names the argument if it is none."""
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise InvalidConfigError(f"{name} must be a whole number", value=repr(value)) from None

"""How wide searches by chance or by steps are: as narrow as a suite needs that runs often, wider in `make soak`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, TypeVar

from hypothesis import settings

T, U = TypeVar("T"), TypeVar("U")

#: How many times as many examples as in the suite are tried.
FACTOR = int(os.environ.get("DISTLOG_SEARCH_FACTOR", "1"))


def examples(count: int, **more: Any) -> settings:
    return settings(max_examples=count * FACTOR, **more)


def stride(count: int) -> int:
    """How far a search that goes step by step goes at once: `count` steps in the suite."""
    return count if FACTOR == 1 else 1


def pairs(many: Iterable[T], few: Iterable[U]) -> list[tuple[T, U]]:
    """Each of `many` with each of `few`; in the suite each with one of the few, in turn."""
    those = list(few)
    return [
        (number_a, other)
        for number, number_a in enumerate(many)
        for position, other in enumerate(those)
        if (number + position) % stride(len(those)) == 0
    ]

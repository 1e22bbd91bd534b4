"""How wide the searches with hypothesis are: as narrow as a suite needs that runs often, wider in `make soak`."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

#: How many times as many examples as in the suite are tried.
FACTOR = int(os.environ.get("DISTLOG_SEARCH_FACTOR", "1"))


def examples(count: int, **more: Any) -> settings:
    """A search with so many examples in the suite."""
    return settings(max_examples=count * FACTOR, **more)

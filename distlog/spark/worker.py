"""What a Python worker of Spark does once in its life."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_imports() -> None:
    """Take what is imported by now out of garbage collection.

    Spark's daemon collects after every task: with numba's many objects that is 50 ms each time, without them 1 ms.
    """
    gc.collect()
    gc.freeze()

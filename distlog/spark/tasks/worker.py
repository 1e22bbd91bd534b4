"""Code that a Python worker of Spark runs once in its life."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def freeze_imports() -> None:
    """Exclude all objects imported so far from garbage collection, but only in Spark's Python processes.

    Spark's daemons, one for tasks and one for each step of planning, collect garbage after each piece of work. With
    numba's many objects that takes 50 ms each time, without them 1 ms.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name.startswith("pyspark."):
        gc.collect()
        gc.freeze()

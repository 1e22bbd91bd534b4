"""What a Python worker of Spark does once in its life."""

from __future__ import annotations

import gc
import sys
from functools import cache


@cache
def freeze_imports() -> None:
    """Take what is imported by now out of garbage collection; a process of somebody else is left as it is.

    Spark's daemons, one for tasks and one for each step of planning, collect whenever they have done something: with
    numba's many objects that is 50 ms each time, without them 1 ms.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name.startswith("pyspark."):
        gc.collect()
        gc.freeze()

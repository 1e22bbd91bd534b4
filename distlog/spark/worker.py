"""What makes a Python process of Spark a good worker. In other processes nothing is done."""

from __future__ import annotations

import gc
import sys
import traceback
from functools import cache
from types import ModuleType

_main = sys.modules["__main__"]
_name = str(getattr(getattr(_main, "__spec__", None), "name", ""))
_is_sparks = _name.startswith("pyspark.")


@cache
def settle() -> None:
    """Exclude all objects imported so far from garbage collection.

    Spark's daemons, one for tasks and one for each step of planning, collect garbage after each piece of work. With
    numba's many objects that takes 50 ms each time, without them 1 ms.
    """
    if _is_sparks:
        gc.collect()
        gc.freeze()


def works_for(module: str) -> bool:
    """Whether this is a process of Spark for that module: each step of planning has processes of its own."""
    return _is_sparks and module in (_name, *sys.argv)


def _let_spark_hang_up(daemon: ModuleType) -> None:
    """Print no stack trace if the JVM has closed its end of the socket: at a limit, or when the task or job ended.

    The daemon prints what ends a worker by a function of its module `traceback`, so it gets another such module.
    """
    quiet = ModuleType(traceback.__name__)
    vars(quiet).update(vars(traceback), print_exc=_print_unless_closed)
    vars(daemon)["traceback"] = quiet


def _print_unless_closed() -> None:
    if not isinstance(sys.exc_info()[1], ConnectionError):
        traceback.print_exc()


# at once, since a task can fail before it has called anything here
if _is_sparks:
    _let_spark_hang_up(_main)

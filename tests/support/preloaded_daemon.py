"""Spark's daemon of Python workers, as `spark.python.daemon.module`: it has imported distlog before it forks them.

Else each worker would, and a query has several: half a second of CPU each.
"""

from __future__ import annotations

from forked_programs import import_what_programs_use
from pyspark import daemon

if __name__ == "__main__":
    import_what_programs_use()
    daemon.manager()

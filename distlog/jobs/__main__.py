"""Runs a job of an installed distlog: `python -m distlog.jobs NAME ...`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from distlog.console.output import WRONG_USAGE
from distlog.jobs import append, maintenance, read, to_table

#: Each job has a `parser` and a `main`.
JOBS: Mapping[str, Any] = {
    "append": append,
    "read": read,
    "to_table": to_table,
    "compact": maintenance.compact,
    "maintain": maintenance.maintain,
    "rebuild_index": maintenance.rebuild_index,
    "retention": maintenance.retention,
    "vacuum": maintenance.vacuum_files,
    "verify": maintenance.verify,
}


def main() -> int:
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in JOBS:
        print(f"usage: python -m distlog.jobs NAME ...; NAME is one of {', '.join(JOBS)}", file=sys.stderr)
        return WRONG_USAGE
    del sys.argv[1]
    status: int = JOBS[name].main()
    return status


if __name__ == "__main__":
    sys.exit(main())

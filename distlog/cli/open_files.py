"""How many files and connections a gateway's process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress


def raise_open_files() -> int:
    """Raise the process's limit of open files (ulimit -n) to what it may be, as Java does; returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def connections_within(open_files: int, most: int) -> int:
    """How many connections there may be, at most `most`, so that as many files are left for logs."""
    return min(most, open_files // 2)

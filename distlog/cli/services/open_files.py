"""How many files a gateway's process may have open."""

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

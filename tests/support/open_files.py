"""The files that this process has open: those below a folder alone, as threads of other tests come and go."""

from __future__ import annotations

import os
from pathlib import Path


def open_below(folder: Path) -> list[str]:
    """The paths below the folder that are open, once for each descriptor, in order."""
    links = (f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd"))
    # all but the listing itself
    paths = (os.readlink(link) for link in links if os.path.islink(link))
    return sorted(path for path in paths if path.startswith(f"{folder}/"))

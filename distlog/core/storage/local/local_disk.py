"""Whether a folder is on a disk of this machine, so that processes may share files by `flock` and mapped pages.

Neither works reliably on network file systems, and an error of theirs ends a process that reads a mapped file. A file
system that is not known to be local is taken to be remote: then segments are committed whole, and large reads copy
instead of mapping.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache

MOUNT_TABLE = "/proc/self/mountinfo"
LOCAL = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "nilfs2", "overlay", "ramfs", "reiserfs", "tmpfs"}
    | {"ubifs", "xfs", "zfs"}
)
_OCTAL = re.compile(r"\\([0-7]{3})")


def is_local_disk(path: str, mount_table: str = MOUNT_TABLE) -> bool:
    """Whether `path`, or the folder above it that exists, is on a local disk; False if the system does not tell."""
    try:
        with open(mount_table, encoding="utf-8", errors="surrogateescape") as table:
            mounts = [_mount(line) for line in table]
    except (OSError, ValueError, IndexError):
        return False
    real, longest, found = os.path.realpath(path), -1, ""
    for folder, kind in mounts:
        # of several mounts at one place, the last one is visible
        if _is_in(real, folder) and len(folder) >= longest:
            longest, found = len(folder), kind
    return found in LOCAL


@lru_cache(256)
def known_local_disk(folder: str) -> bool:
    """The answer of `is_local_disk` from the first time this process asked for the folder."""
    return is_local_disk(folder)


def _mount(line: str) -> tuple[str, str]:
    """(mount point, kind of file system) of a line, whose optional fields end at a single dash."""
    fields = line.split()
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4]), fields[fields.index("-", 6) + 1]


def _is_in(path: str, folder: str) -> bool:
    return folder == "/" or path == folder or path.startswith(folder + "/")

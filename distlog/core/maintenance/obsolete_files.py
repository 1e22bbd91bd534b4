"""Obsolete files beside the segments: checkpoints that no load begins with, torn puts, probes."""

from __future__ import annotations

from collections.abc import Iterable

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.commits.snapshot_loader import CHECKPOINTS_TRIED
from distlog.core.storage.storage import FileInfo

#: However short `file.delete.delay.ms` is: a put that meets trouble is aborted after ten minutes.
LONGEST_PUT_MS = 3_600_000


def obsolete_checkpoints(found: Iterable[FileInfo], floor: int, pinned: Iterable[int]) -> list[FileInfo]:
    """The checkpoints among a topic's files that are below version `floor`, and that no load reads of a version kept.

    Kept are the versions from `floor` on, and the pinned ones. A load tries the newest checkpoints up to its version,
    the second where the first is damaged. What is older than that can still be loaded, from its commits.
    """
    files = {file.name: file for file in found}
    versions = {name: version for name in files if (version := checkpoint.version_of(name)) is not None}
    kept = {name for name, version in versions.items() if version > floor}
    for target in (floor, *pinned):
        kept.update(sorted(name for name, version in versions.items() if version <= target)[-CHECKPOINTS_TRIED:])
    return [files[name] for name in sorted(versions.keys() - kept)]


def left_over_files(found: Iterable[FileInfo], before_ms: int) -> list[FileInfo]:
    """What processes that died left among a topic's files, of a put or a probe, last written before `before_ms`.

    A writer that was only slow finds its temporary file gone and fails: nothing was put then.
    """
    return [
        file for file in found if paths.is_left_over(file.name.rpartition("/")[2]) and file.modified_ms < before_ms
    ]

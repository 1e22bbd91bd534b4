"""Finds obsolete files other than segments: checkpoints that no load begins with, torn puts, probes, locks.

And what is stored of producers and leader epochs that nobody asks for any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint
from distlog.core.commits.snapshot_loader import CHECKPOINTS_TRIED
from distlog.core.commits.state.snapshot import PartitionState, Snapshot
from distlog.core.errors import StorageError
from distlog.core.maintenance.vacuuming.unreferenced_files import Referenced
from distlog.core.storage.local.file_lock import FileLock
from distlog.core.storage.storage import FileInfo, Storage

#: Vacuum leaves younger leftovers alone, however short `file.delete.delay.ms` is. A put in trouble is aborted after
#: ten minutes.
LONGEST_PUT_MS = 3_600_000


def obsolete_checkpoints(found: Iterable[FileInfo], floor: int, pinned: Iterable[int]) -> list[FileInfo]:
    """The checkpoints below version `floor` that no load of a kept version reads.

    `found` are the topic's files. The versions from `floor` on are kept, and the `pinned` ones. A load tries the
    newest checkpoints up to its version: the second one if the first is damaged. Older versions can still be loaded
    from their commits.
    """
    files = {file.name: file for file in found}
    versions = {name: version for name in files if (version := checkpoint.version_of(name)) is not None}
    kept = {name for name, version in versions.items() if version > floor}
    for target in (floor, *pinned):
        kept.update(sorted(name for name, version in versions.items() if version <= target)[-CHECKPOINTS_TRIED:])
    return [files[name] for name in sorted(versions.keys() - kept)]


def left_over_files(found: Iterable[FileInfo], before_ms: int) -> list[FileInfo]:
    """The files that dead processes left of a put or a probe, last written before `before_ms`.

    `found` are the topic's files. If a writer was only slow, it finds its temporary file gone and fails: it has put
    nothing.
    """
    return [
        file for file in found if paths.is_left_over(file.name.rpartition("/")[2]) and file.modified_ms < before_ms
    ]


def obsolete_producers(
    found: Iterable[FileInfo],
    head: Snapshot,
    referenced: Referenced,
    floor: int,
    load: Callable[[int], Snapshot],
) -> list[FileInfo]:
    """What brokers, adoption and retention left of producers and leader epochs, where nothing needs it any more.

    `found` are the topic's files. Of producers that is what is below the beginning of the log, since only appends at
    its end ask for them, and below that in every version that is kept, since a restore may bring each of them back:
    the pinned ones, and those from the gc `floor` on. A log begins later from version to version, but for restores.
    `load` loads a version. Leader epochs are needed as long as a version that is kept has a broker's segment.
    """
    if head.dropped and referenced.stems:
        return []
    obsolete = [file for file in found if _is_obsolete(file.name, head, referenced)]
    of_producers = {file.name for file in obsolete if paths.parse_producer_snapshot(file.name, head.name)}
    if head.dropped or not of_producers:
        return obsolete
    earliest = [load(version) for version in (floor, *referenced.pinned, *referenced.restored)]
    versions = [version for version in earliest if version.topic_id == head.topic_id]
    kept = {name for name in of_producers if not all(_is_below(name, version) for version in versions)}
    return [file for file in obsolete if file.name not in kept]


def _is_obsolete(name: str, head: Snapshot, referenced: Referenced) -> bool:
    if paths.parse_producer_snapshot(name, head.name):
        return head.dropped or _is_below(name, head)
    number = paths.parse_leader_epochs(name, head.name)
    if number is None:
        return False
    return not any(number == one and paths.stem_read_version(stem) is None for one, stem in referenced.stems)


def _is_below(name: str, snapshot: Snapshot) -> bool:
    """Whether what is stored of producers in the file is of an offset before the log's beginning."""
    found = paths.parse_producer_snapshot(name, snapshot.name)
    if found is None or found[0] >= len(snapshot.partitions):
        return False
    return found[1] < _begin(snapshot.partitions[found[0]])


def _begin(state: PartitionState) -> int:
    return state.segments[0].base_offset if len(state.segments) else state.log_end_offset


def lock_files(found: Iterable[FileInfo]) -> list[FileInfo]:
    """The locks of partitions among `found`, the topic's files; writers of a dropped topic need them no more."""
    return [file for file in found if paths.is_lock_file(file.name.rpartition("/")[2])]


def delete_locks(storage: Storage, files: Sequence[FileInfo]) -> None:
    """Delete locks of a topic on a local disk, except for those that are held.

    Each is held while it is deleted: the topic may have been created again meanwhile, and two of its writers must not
    hold the old file and a new one.
    """
    for file in files:
        lock = FileLock(storage.local_path(file.name))
        with suppress(StorageError), lock.held(0):
            storage.delete([file.name])
        lock.close()

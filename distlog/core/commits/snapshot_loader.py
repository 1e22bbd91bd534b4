"""Finds and loads the state of a topic: the newest usable checkpoint, then the commits after it."""

from __future__ import annotations

import bisect
import dataclasses
import logging
from collections.abc import Mapping
from types import MappingProxyType

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint
from distlog.core.commits.commit_files import CommitFiles
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.state.fold import fold
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import MAX_LONG
from distlog.core.errors import CorruptMetadataError, OffsetOutOfRangeError
from distlog.core.storage.storage import Storage

# A load reads so many commits after the checkpoint at once; often there are no more.
_FIRST_GROUP = 4
#: After so many unusable checkpoints something else is wrong, which the commits will show.
CHECKPOINTS_TRIED = 2

_NEVER = range(0)
NO_DEFAULTS: Mapping[str, object] = MappingProxyType({})

_log = logging.getLogger(__name__)


class SnapshotLoader:
    """Loads snapshots of the topic in `storage`, also of a dropped topic; `defaults` are for its config."""

    def __init__(self, storage: Storage, defaults: Mapping[str, object] = NO_DEFAULTS) -> None:
        self._storage, self.defaults = storage, defaults
        self._files = CommitFiles(storage)

    def load(
        self, version: int | None = None, known: Snapshot | None = None, recent: range = _NEVER
    ) -> Snapshot | None:
        """The snapshot at `version`, or at the head; None when there is no topic.

        `known` was loaded here before: if its commit is still there, only that and later commits are read, up to the
        first one of a `recent` time. Raises OffsetOutOfRangeError when there is no such version yet,
        CorruptMetadataError.
        """
        if version is not None and version < 0:
            raise OffsetOutOfRangeError("versions begin at 0", version=version)
        end = MAX_LONG if version is None else version + 1
        snapshot = self._from_known(known, end, recent) if known and known.version < end else None
        snapshot = snapshot or self._from_hint(end) or self._from_listing(end)
        if snapshot and version not in (None, snapshot.version):
            raise OffsetOutOfRangeError("there is no such version yet", version=version, head=snapshot.version)
        if snapshot and self.defaults:
            return dataclasses.replace(snapshot, config=snapshot.config.with_defaults(self.defaults))
        return snapshot

    def load_at(self, timestamp_ms: int) -> Snapshot | None:
        """The snapshot of the newest commit that is not after `timestamp_ms`; otherwise as `load`."""
        head = self.load()
        if head is None or head.timestamp_ms <= timestamp_ms:
            return head
        later = bisect.bisect_right(range(head.version), timestamp_ms, key=self._timestamp)
        if later == 0:
            raise OffsetOutOfRangeError("the topic did not exist at that time", timestamp_ms=timestamp_ms)
        return self.load(later - 1)

    def follow(self, snapshot: Snapshot, *, group: int = 1) -> Snapshot:
        """`snapshot` with all later commits applied; it begins with `group` requests at once."""
        for commits in self._files.follow(snapshot.version + 1, group=group):
            snapshot = fold(snapshot, commits)
        return snapshot

    def _from_known(self, known: Snapshot, end: int, recent: range) -> Snapshot | None:
        """None if the folder was deleted and the topic made anew, so that `known` is of another topic.

        Each commit names the one before it, so the commit of `known` is looked for only if there is no later one.
        """
        try:
            snapshot = known
            for commits in self._files.follow(known.version + 1, end=end):
                snapshot = fold(snapshot, commits)
                if snapshot.timestamp_ms in recent and not snapshot.dropped:
                    break
            if snapshot is known:
                _check_belongs(known, self._files.read_existing(known.version, whole=False))
            return snapshot
        except CorruptMetadataError as error:
            _log.warning("what was known of the topic is ignored: %s", error)
            return None

    def _from_hint(self, end: int) -> Snapshot | None:
        name = checkpoint.read_hint(self._storage)
        return self._from_checkpoint(name, end, known=-1) if name and _is_below(name, end) else None

    def _from_listing(self, end: int) -> Snapshot | None:
        names = [file.name for file in self._storage.list(paths.COMMITS_DIR)]
        known = max(map(_version_seen, names), default=-1)
        for name in sorted((name for name in names if _is_below(name, end)), reverse=True)[:CHECKPOINTS_TRIED]:
            snapshot = self._from_checkpoint(name, end, known)
            if snapshot:
                return snapshot
        return self._fold_from(None, end, known)

    def _from_checkpoint(self, name: str, end: int, known: int) -> Snapshot | None:
        try:
            snapshot = checkpoint.read(self._storage, name)
            return self._fold_from(snapshot, end, max(known, snapshot.version))
        except (CorruptMetadataError, FileNotFoundError) as error:
            _log.warning("the checkpoint %s is ignored: %s", name, error)
            return None

    def _fold_from(self, snapshot: Snapshot | None, end: int, known: int) -> Snapshot | None:
        """`snapshot`, or nothing, with the commits up to `end`; it must belong to the topic, by its own commit."""
        start = snapshot.version if snapshot else 0
        new = start + 1 if snapshot else 0
        for commits in self._files.follow(start, end=end, known=known, group=_FIRST_GROUP, whole_from=new):
            if snapshot and commits[0].version == snapshot.version:
                _check_belongs(snapshot, commits[0])
                commits = commits[1:]
            snapshot = fold(snapshot, commits) if commits else snapshot
        return snapshot

    def _timestamp(self, version: int) -> int:
        return self._files.read_existing(version, whole=False).timestamp_ms


def _version_seen(name: str) -> int:
    """The version in the name of a commit or checkpoint, which therefore exists; -1 for any other file."""
    version = paths.parse_commit_file(name.rpartition("/")[2])
    version = checkpoint.version_of(name) if version is None else version
    return -1 if version is None else version


def _is_below(name: str, end: int) -> bool:
    version = checkpoint.version_of(name)
    return version is not None and version < end


def _check_belongs(snapshot: Snapshot, commit: Commit) -> None:
    if commit.id != snapshot.commit_id:
        raise CorruptMetadataError("the checkpoint is of another topic", version=snapshot.version)

"""One attempt to commit: the commit is made, read back and applied, as every reader will do."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from distlog.core import paths
from distlog.core.commits import commit_rules
from distlog.core.commits.append_time import with_append_times
from distlog.core.commits.format.actions import Action
from distlog.core.commits.format.commit import Commit, Origin
from distlog.core.commits.format.features import NOTHING
from distlog.core.commits.format.manifest import CommitWriter
from distlog.core.commits.state.fold import apply
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.commits.store_time import not_after, trusted_ms
from distlog.core.errors import CommitConflictError, CorruptMetadataError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage


@dataclass(frozen=True, slots=True)
class Attempt:
    """A commit before it is put: the commit, its bytes, and the state after it."""

    commit: Commit
    data: bytes
    after: Snapshot


class Attempts:
    """The attempts of one commit, a new one after each lost race; its manifest, if any, is kept between them.

    `writer` is the author of the commit, `origin` its write; `clock` gives the time in ms. A commit of more than
    `limit` bytes gets a manifest.
    """

    def __init__(
        self,
        storage: Storage,
        operation: str,
        *,
        writer: str,
        origin: Origin,
        clock: Callable[[], int],
        limit: int = MAX_CONDITIONAL_BYTES,
    ) -> None:
        self._storage, self._operation, self._clock = storage, operation, clock
        self._writer, self._origin = writer, origin
        self._files = CommitWriter(storage, limit)

    def make(self, head: Snapshot | None, topic_id: str, actions: Sequence[Action], waited_ms: int = 0) -> Attempt:
        """The commit of `actions` after `head`.

        Raises CommitConflictError when readers would refuse the commit, TransactionTooOldError when files are too
        old.
        """
        passed_ms = head.timestamp_ms if head else 0
        timestamp_ms = max(trusted_ms(self._clock(), self._storage, passed_ms), passed_ms + 1)
        actions = with_append_times([not_after(timestamp_ms, action) for action in actions], timestamp_ms)
        commit = Commit(
            version=head.version + 1 if head else 0,
            id=str(uuid.uuid4()),
            prev=head.commit_id if head else None,
            topic_id=topic_id,
            timestamp_ms=timestamp_ms,
            operation=self._operation,
            writer=self._writer,
            waited_ms=waited_ms,
            write_id=self._origin.write_id,
            run_id=self._origin.run_id,
            actions=actions,
            requires=commit_rules.features(actions).beyond(head.requires if head else NOTHING),
        )
        if head:
            commit_rules.check_read_version(head, commit_rules.oldest_read_version(actions))
        return self._read_back(head, commit)

    def _read_back(self, head: Snapshot | None, commit: Commit) -> Attempt:
        data = self._files.encode(commit, *((head.version, head.gc_floor) if head else (0, 0)))
        try:
            commit = self._files.decode(data, paths.commit_file(commit.version))
            return Attempt(commit, data, apply(head, commit))
        except CorruptMetadataError as error:
            raise CommitConflictError(
                f"nothing was committed: {error.__cause__}", operation=self._operation
            ) from error

    def write_manifest(self) -> None:
        """Make the manifest of the last attempt durable, if it has one; call it before the commit is put."""
        self._files.write_manifest()

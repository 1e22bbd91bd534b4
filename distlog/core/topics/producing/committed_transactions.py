"""The buffers of a transactional producer where nothing is appended in place, as on object storage.

There a commit is atomic by itself. So a transaction is written as segments that nobody sees, and is one commit at its
end, or none. Nothing is left open, and no marker is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import CommitStateUnknownError, ProducerFencedError, StorageError
from distlog.core.log.transaction_coordinator import CommittedError
from distlog.core.storage.retry import Deadline
from distlog.core.topics.appending.append_commit import AppendResult, commit_append
from distlog.core.topics.appending.appender import Appender
from distlog.core.topics.appending.transaction import open_appender
from distlog.core.topics.producing.idempotent_destination import IdempotentCommits
from distlog.core.topics.writing.delivery import delivered
from distlog.core.topics.writing.destination import Sent


class CommittedTransactions(IdempotentCommits):
    """Commits each transaction at once and, outside of transactions, each buffer."""

    _appender: Appender | None = None
    _read_version = 0
    #: What the transaction wrote, once its commit was tried, and the number that it is committed under.
    _written: list[SegmentInfo] | None = None
    _number = 0

    def begin(self) -> None:
        """Begin a transaction."""
        identity = self._producer.identity
        identity.check(self._current.refresh())
        self._read_version, self._written = self._current.snapshot.version, None
        # each has a number of its own, so that it is known again even if an interrupt came behind its commit
        self._sent[identity.app_id] += 1
        self._number = identity.first_number + self._sent[identity.app_id]
        self._appender = open_appender(self._handle, self._current, self._compression)

    def send(self, records: pa.RecordBatch) -> Sent:
        """Write the records of a transaction, or commit those outside of one."""
        if self._appender is None:
            return super().send(records)
        self._appender.append(records)
        return Sent(AppendResult(None), [])

    def commit(self) -> Sent:
        """Commit all that was sent. Raises as `Topic.append` does, and ProducerFencedError.

        After CommitStateUnknownError it may be called again.
        """
        if self._written is None:
            self._written = self._open_appender().close()
        if self._written:
            result = self._committed_once(self._written)
        else:
            self._producer.identity.check(self._current.refresh())
            result = AppendResult(None)
        self._appender = None
        return Sent(result, delivered(result))

    def abort(self, *, has_failed: bool) -> None:
        """Forget all that was sent; vacuum deletes the files that nobody refers to.

        Raises CommittedError if it was committed after all.
        """
        # a commit that nobody heard of cannot land any more behind one that takes its number
        if self._written and self._committed_once([]).replayed:
            self._appender = None
            raise CommittedError("the transaction is committed")
        self._open_appender().abort()
        self._appender = None

    def begin_child(self) -> None:
        """Become usable in a forked child: the transaction is the parent's."""
        self._appender = None

    def _open_appender(self) -> Appender:
        assert self._appender is not None
        return self._appender

    def _committed_once(self, segments: Sequence[SegmentInfo]) -> AppendResult:
        """Commit the segments under the transaction's number, unless something is committed under it."""
        identity, deadline = self._producer.identity, Deadline(self._timeout_s)
        while True:
            try:
                result, snapshot = commit_append(
                    self._handle,
                    self._current.snapshot,
                    segments,
                    # where nothing is added, no file can be too old
                    read_version=self._read_version if segments else None,
                    app_id=identity.app_id,
                    batch_id=self._number,
                    in_order=True,
                    written_by=self._open_appender().config,
                )
                break
            except (StorageError, CommitStateUnknownError):
                if not deadline.pause():
                    raise
        self._current.advance(snapshot)
        if result.replayed and result.version is None:
            identity.check(snapshot)
            raise ProducerFencedError("a transaction of this producer is not known any more: begin a new producer")
        return result

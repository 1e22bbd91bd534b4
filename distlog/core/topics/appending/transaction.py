"""Several appends in one commit, all or none."""

from __future__ import annotations

import os
from types import TracebackType

from distlog.core.commits.current_snapshot import CurrentSnapshot
from distlog.core.errors import InvalidRecordError
from distlog.core.topic_handle import TopicHandle
from distlog.core.topics.appending.append_commit import AppendResult, BatchId, check_batch, commit_append, replayed
from distlog.core.topics.appending.appendable import Appendable
from distlog.core.topics.appending.appender import Appender
from distlog.core.topics.appending.retention_warning import warn_of_retention


def open_appender(handle: TopicHandle, current: CurrentSnapshot, compression: str | None = None) -> Appender:
    """An Appender, which writes rows as segments that wait for a commit.

    Raises ReadOnlyTopicError, InvalidConfigError.
    """
    current.check_writable(handle.storage)
    snapshot = current.snapshot
    partitions = len(snapshot.partitions)
    return Appender(
        handle.storage,
        handle.name,
        snapshot.config,
        partitions,
        read_version=snapshot.version,
        first_partition=handle.random.randrange(partitions),
        clock=handle.clock,
        random=handle.random,
        new_id=handle.new_id,
        compression=compression,
    )


class Transaction:
    """Appends to any partitions of a topic that become visible together, when the `with` block ends well.

    `result` tells the version and the offsets afterwards. When the block or one of the appends raises, nothing was
    appended; after an append that raised, `commit` raises its error again. A forked child can only abort its copy.
    `in_order` says that the application numbers its batches, and commits them one after the other.
    """

    def __init__(
        self,
        handle: TopicHandle,
        current: CurrentSnapshot,
        app_id: str | None = None,
        batch_id: BatchId | None = None,
        compression: str | None = None,
        *,
        in_order: bool = False,
    ) -> None:
        check_batch(app_id, batch_id)
        self._handle, self._current, self._app_id, self._batch_id = handle, current, app_id, batch_id
        snapshot = current.refresh()
        self._read_version = snapshot.version
        self._in_order = in_order
        self._is_replay = replayed(snapshot, app_id, batch_id, in_order=in_order) is not None
        self._appender: Appender | None = open_appender(handle, current, compression)
        self._error: BaseException | None = None
        self._trace: TracebackType | None = None
        self._process = os.getpid()
        self.result = AppendResult(None)

    def append(self, data: Appendable, partition: int | None = None, *, progress: bool | None = None) -> int:
        """Take Arrow, pandas or dicts; returns the number of rows. InvalidRecordError tells what does not fit.

        The rows of a replayed (app_id, batch_id) are not looked at. `progress` as in `Scan.to_table`.
        """
        appender = self._open_appender()
        if self._is_replay:
            return 0
        try:
            return appender.append(data, partition, progress)
        except BaseException as error:
            self.abort()
            self._error, self._trace = error, error.__traceback__
            raise

    def commit(self) -> AppendResult:
        """Make the appends durable and visible, all at once; returns the result, also kept as `result`.

        Raises CommitConflictError, StorageError (nothing was appended), CommitStateUnknownError (it may have been).
        """
        appender, self._appender = self._open_appender(), None
        self.result, snapshot = commit_append(
            self._handle,
            self._current.snapshot,
            appender.close(),
            read_version=self._read_version,
            app_id=self._app_id,
            batch_id=self._batch_id,
            written_by=appender.config,
            in_order=self._in_order,
        )
        self._current.advance(snapshot)
        warn_of_retention(self.result.expired, snapshot)
        return self.result

    def _open_appender(self) -> Appender:
        if self._process != os.getpid():
            raise InvalidRecordError("the transaction was begun before a fork, by the parent; begin another here")
        if self._error is not None:
            # with its first traceback: each raise adds to it, and so would keep the caller's objects alive
            raise self._error.with_traceback(self._trace)
        if self._appender is None:
            raise InvalidRecordError("the transaction has ended; begin another")
        return self._appender

    def abort(self) -> None:
        """Append nothing; the files written stay unreferenced until vacuum."""
        if self._appender is not None:
            self._appender.abort()
        self._appender = self._error = self._trace = None

    def __enter__(self) -> Transaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.abort()
        elif self._appender is not None or self._error is not None:
            self.commit()

"""The records of a buffer for one partition, on their way to the device: encoded, appended, flushed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import closing
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from distlog.core.batches.batch_format import BatchFormat
from distlog.core.batches.record_encoder import EncodedBatches, RecordEncoder
from distlog.core.batches.record_input import RecordInput
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitStateUnknownError, DistlogError, StorageError, TransactionTooOldError
from distlog.core.log.partition.appended import Appended, LostRecordsError
from distlog.core.log.partition.batch_runs import runs
from distlog.core.log.partition.partition_log import PartitionLog
from distlog.core.topics.writing.destination import Failure

#: Roughly the most bytes that a batch of a few records takes beyond them.
_SPARE_BYTES = 1 << 12


_PASSING = (StorageError, CommitStateUnknownError, TransactionTooOldError)


class Encoding(NamedTuple):
    """How records are encoded: the topic's settings, the format that follows from them, and the time in ms."""

    config: TopicConfig
    form: BatchFormat
    now_ms: int


class PartitionBuffer:
    """The `rows` of `source`, which go to `partition`, and what became of them.

    An error stops the partition and is kept: the others go on. `record_bytes` is the size of all rows in Arrow.
    """

    def __init__(self, partition: int, source: RecordInput, rows: npt.NDArray[np.int64], record_bytes: int) -> None:
        self.partition, self._source, self._rows = partition, source, rows
        self._room = record_bytes + 8 * len(rows) + _SPARE_BYTES
        self._batches: EncodedBatches | None = None
        self._in_transaction = False
        self._appended: list[Appended] = []
        self._acknowledged = 0
        self._error: BaseException | None = None
        self._rest_in_doubt = False

    def encode(self, encoding: Encoding) -> PartitionBuffer:
        """Make the batches; returns this object."""
        self._in_transaction = encoding.form.transactional
        try:
            encoder = RecordEncoder(encoding.form, gather_bytes=sys.maxsize, room=self._room)
            # one step takes all rows, since `gather_bytes` has no limit here
            next(encoder.append(self._source, self._rows), None)
            self._batches = encoder.finish()
        except BaseException as error:
            self._error = error
        return self

    def append(self, log: PartitionLog, encoding: Encoding, fence: Callable[[Snapshot], None] | None = None) -> None:
        """Append the batches that are not appended, with no record of others between them; see `append_runs`."""
        batches, self._batches = self._batches, None
        if batches is None:
            return
        try:
            # closed at once, since it holds the partition's lock
            found = runs(batches, encoding.config, encoding.now_ms, in_transaction=self._in_transaction)
            left = islice(found, len(self._appended), None)
            with closing(log.append_runs(left, fence)) as places:
                for appended in places:
                    self._appended.append(appended)
        except DistlogError as error:
            self._error = error
        except BaseException as error:
            # only distlog's errors promise that nothing was appended
            self._error, self._rest_in_doubt = error, True
            raise

    def flush(self, log: PartitionLog) -> None:
        """Acknowledge what was appended, after a sync if the topic's flush policy wants one."""
        try:
            for appended in self._appended[self._acknowledged :]:
                if appended.flush_due:
                    log.flush(appended)
                self._acknowledged += 1
        except BaseException as error:
            # it may still be flushed by another process
            self._error = self._error or error

    def stop(self, error: BaseException) -> None:
        """Keep the error that stopped the whole buffer, unless there is one, or all is done."""
        if sum(map(_count, self.acknowledged)) < len(self._rows):
            self._error = self._error or error

    @property
    def record_count(self) -> int:
        """How many records there are."""
        return len(self._rows)

    @property
    def is_done(self) -> bool:
        """Whether all records are acknowledged."""
        return self._error is None

    @property
    def may_succeed_later(self) -> bool:
        """Whether it failed for a reason that may pass; what was appended of it is known then."""
        return isinstance(self._error, _PASSING) and not self._rest_in_doubt

    def begin_again(self) -> None:
        """Be ready to be encoded and appended again, after an error."""
        if isinstance(self._error, LostRecordsError):
            del self._appended[self._acknowledged :]
        self._error = None

    @property
    def acknowledged(self) -> list[Appended]:
        """What was appended, and is as safe as the topic wants it; the offsets follow each other."""
        return self._appended[: self._acknowledged]

    @property
    def failures(self) -> list[Failure]:
        """What was not acknowledged: the records that may be in the log, and those that are not."""
        if self._error is None:
            return []
        doubtful = sum(map(_count, self._appended[self._acknowledged :]))
        rest = len(self._rows) - sum(map(_count, self._appended))
        if self._rest_in_doubt:
            doubtful, rest = doubtful + rest, 0
        counts = ((doubtful, True), (rest, False))
        return [Failure(self.partition, count, self._error, in_doubt) for count, in_doubt in counts if count]


def _count(appended: Appended) -> int:
    return appended.end_offset - appended.first_offset

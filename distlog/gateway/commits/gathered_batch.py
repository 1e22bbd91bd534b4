"""A batch on its way into a commit, and what its producer is told then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.log.partition.appended import SEALED, Appended, AppendInfo
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.log.partition.log_validator import ValidBatch
from distlog.core.times import NO_TIMESTAMP
from distlog.core.transactions.producer_state import KnownBatch

#: Raises an error by what a snapshot says: then nothing is appended behind it.
Fence = Callable[[Snapshot], None]


@dataclass(slots=True, eq=False)
class GatheredBatch:
    """A batch that waits for its commit; `config` is what it was checked by, `fence` may refuse it."""

    partition: int
    valid: ValidBatch
    config: TopicConfig
    fence: Fence | None = None
    told: Future[AppendInfo] = field(default_factory=Future)

    @classmethod
    def of_run(cls, partition: int, run: BatchRun, config: TopicConfig, fence: Fence) -> GatheredBatch:
        """A batch of the gateway itself."""
        valid = ValidBatch(run.data, run.rows, int(run.newest_offsets[0]), int(run.min_timestamps[0]))
        return cls(partition, valid, config, fence)

    @property
    def count(self) -> int:
        """How many offsets it takes."""
        return int(self.valid.rows[0]["last_offset_delta"]) + 1

    @property
    def has_producer(self) -> bool:
        """Whether it is of a producer, or ends a producer's transaction."""
        return bool(self.valid.rows[0]["producer_id"] >= 0)

    @property
    def sequence(self) -> tuple[int, ...] | None:
        """What tells the batch of a producer from its others; None if it is not numbered."""
        row = self.valid.rows[0]
        names = ("producer_id", "producer_epoch", "base_sequence", "last_offset_delta")
        return (self.partition, *(int(row[name]) for name in names)) if row["base_sequence"] >= 0 else None


#: Batches that are committed together, by partition.
Accepted = Mapping[int, Sequence[GatheredBatch]]


class SentElsewhereError(Exception):
    """Some batches are not to be committed, or not like this: others have committed meanwhile."""


def ask_fences(accepted: Accepted, current: Snapshot) -> None:
    """Tell those whom their fences refuse; then raise SentElsewhereError, to begin anew without them."""
    answers = dict[Fence, Exception | None]()
    refused = False
    for batch in [batch for each in accepted.values() for batch in each]:
        fence = batch.fence
        if fence is None:
            continue
        if fence not in answers:
            answers[fence] = _answer(fence, current)
        error = answers[fence]
        if error is not None:
            batch.told.set_exception(error)
            refused = True
    if refused:
        raise SentElsewhereError


def _answer(fence: Fence, current: Snapshot) -> Exception | None:
    try:
        fence(current)
    except Exception as error:
        return error
    return None


def checked_by(accepted: Accepted) -> TopicConfig:
    """Settings by which no batch has been checked more strictly: if any was not looked at for keys, those."""
    configs = [batch.config for each in accepted.values() for batch in each]
    return next((config for config in configs if "compact" not in config.cleanup_policy), configs[0])


def rows_of(batches: Sequence[GatheredBatch]) -> npt.NDArray[Any]:
    """The headers of the batches (BATCH rows), at offsets from 0 on."""
    rows: npt.NDArray[Any] = np.concatenate([batch.valid.rows for batch in batches])
    spans = rows["last_offset_delta"].astype(np.int64) + 1
    rows["base_offset"] = np.cumsum(spans) - spans
    return rows


def appended_before(snapshot: Snapshot, batch: GatheredBatch, known: KnownBatch) -> AppendInfo:
    """What is told of a batch that is there already."""
    end = known.last_offset + 1
    by_log = snapshot.config.message_timestamp_type == "LogAppendTime"
    time_ms = known.timestamp if by_log else NO_TIMESTAMP
    appended = Appended(end - batch.count, end, SEALED, snapshot.version, False, time_ms)
    return AppendInfo(appended, snapshot.partitions[batch.partition].log_start_offset)


def tell_the_same(told: Future[AppendInfo], to: Future[AppendInfo]) -> None:
    """Tell one producer what another was told."""
    error = told.exception()
    if error is not None:
        to.set_exception(error)
    else:
        to.set_result(told.result())

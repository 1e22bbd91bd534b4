"""The states of transactions in the topic `__transaction_state` of a root, which compaction keeps small.

A gateway writes to the partitions that it leads (distlog.core.topics.writing.leadership), and reads all of them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from functools import partial

from distlog.core.config import TopicConfig
from distlog.core.consumer_offsets.positions_format import offsets_partition
from distlog.core.errors import LeaderFencedError, TopicNotFoundError
from distlog.core.log.partition.appended import AppendInfo
from distlog.core.log.partition.batch_runs import BatchRun
from distlog.core.storage.parallel import in_parallel
from distlog.core.topics.writing.leadership import Leadership
from distlog.gateway.commits.gathered_batch import Fence
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.metadata_cache import MetadataCache
from distlog.gateway.topics.own_compaction import OwnCompaction
from distlog.gateway.topics.own_topics import TRANSACTIONS_TOPIC
from distlog.gateway.transactions.newest_states import NewestStates
from distlog.gateway.transactions.own_records import MAX_BATCH_BYTES, own_batch
from distlog.gateway.transactions.state_format import encode_key, encode_state
from distlog.gateway.transactions.transaction_state import TransactionState

_CONFIG = TopicConfig.parse(
    {"cleanup.policy": "compact", "segment.bytes": 104_857_600, "max.message.bytes": MAX_BATCH_BYTES}
)

_log = logging.getLogger("distlog.gateway")


class _Opened:
    """The topic, who leads its partitions, and what they hold."""

    def __init__(self, hosted: HostedTopic) -> None:
        self.hosted = hosted
        self.leadership = Leadership(hosted.topic.handle, hosted.topic.current)
        self.newest = [NewestStates(hosted, number) for number in range(hosted.topic.partitions)]


class TransactionLog:
    """Keeps the newest state of each transactional id; for many threads, but for `begin` and `end`.

    The topic, of so many `partitions`, is made when it is not there. `clock` tells the ms.
    """

    def __init__(self, metadata: MetadataCache, clock: Callable[[], int], partitions: Callable[[], int]) -> None:
        self._metadata, self._clock, self._partitions = metadata, clock, partitions
        self._lock = threading.Lock()
        self._known: _Opened | None = None
        self._has_failed, self._compaction = False, OwnCompaction()
        #: What is on its way, and nobody waits for.
        self._later = set[Future[AppendInfo]]()

    def partition_of(self, transactional_id: str) -> int:
        """The partition that has an id."""
        return offsets_partition(transactional_id, self._partitions())

    # --- who leads

    def begin(self, partitions: Collection[int], may_lead: Callable[[], None] = lambda: None) -> None:
        """Lead partitions; who led them before writes nothing more. Raises what `Leadership.begin` raises."""
        self._opened().leadership.begin(partitions, may_lead)

    def end(self, partitions: Collection[int]) -> None:
        """Write nothing more to these partitions."""
        with self._lock:
            known = self._known
        if known is not None:
            known.leadership.end(partitions)

    def compact(self) -> None:
        """Compact what this gateway leads and has become many segments; one caller at a time. Raises nothing."""
        with self._lock:
            known = self._known
        if known is not None:
            self._compaction.step(known.hosted.topic, known.leadership.partitions)

    def lost(self) -> Collection[int]:
        """After a failure, the partitions that must be begun anew: others lead them, or the topic was dropped.

        Raises DistlogError.
        """
        with self._lock:
            known = self._known
        if known is None or not self._has_failed:
            return ()
        is_other = self._opened() is not known
        found = list(known.leadership.partitions) if is_other else known.leadership.lost()
        self._has_failed = False
        return found

    def settle(self) -> None:
        """Return when nothing is on its way any more but what a call waits for: it is stored, or was refused."""
        with self._lock:
            later = list(self._later)
        wait(later)

    # --- states

    def load(self, partitions: Collection[int]) -> Iterator[TransactionState]:
        """The newest state of each id in these partitions, on the device. Raises DistlogError.

        A record that does not check is logged and left out.
        """
        if not partitions:
            return
        opened = self._opened()
        if opened.hosted.is_local:
            # the gateway that wrote it may have been killed before its sync, and what is read is acted upon
            ends = opened.hosted.topic.refresh().end_offsets()
            used = [number for number in partitions if ends[number]]
            in_parallel(lambda number: opened.hosted.partition(number).sync(None), used)
        # once for all of them
        opened.hosted.refresh()
        for found in in_parallel(lambda number: opened.newest[number].all(), sorted(partitions)):
            yield from found

    def newest(self, transactional_id: str) -> TransactionState | None:
        """The state of an id as the log has it now, whoever leads its partition. Raises DistlogError."""
        return self._opened().newest[self.partition_of(transactional_id)].get(transactional_id)

    def write(self, state: TransactionState, *, is_durable: bool = True) -> None:
        """Keep a state; on the device when this returns, unless that may wait. Raises DistlogError.

        On an object store, one that may wait has a commit of its own only if no other record comes soon.
        """
        opened, number = self._opened(), self.partition_of(state.transactional_id)
        newest, value = opened.newest[number], encode_state(state)
        if is_durable or opened.hosted.is_local:
            newest.wrote(state, self._append(opened, state.transactional_id, value, is_durable=is_durable))
        else:
            told = self._append_later(opened, state.transactional_id, value)
            told.add_done_callback(partial(_wrote, newest, state))

    def forget(self, transactional_id: str) -> None:
        """Keep nothing of an id any more. Raises as `write`."""
        self._append(self._opened(), transactional_id, None, is_durable=False)

    def _append(self, opened: _Opened, transactional_id: str, value: bytes | None, *, is_durable: bool) -> int:
        number, run, fence = self._record(opened, transactional_id, value)
        try:
            return opened.hosted.append_run(number, run, fence, is_durable=is_durable).first_offset
        except (LeaderFencedError, TopicNotFoundError):
            self._has_failed = True
            raise

    def _append_later(self, opened: _Opened, transactional_id: str, value: bytes) -> Future[AppendInfo]:
        told = opened.hosted.append_run_later(*self._record(opened, transactional_id, value))
        with self._lock:
            self._later.add(told)
        told.add_done_callback(self._was_told)
        return told

    def _was_told(self, told: Future[AppendInfo]) -> None:
        with self._lock:
            self._later.discard(told)
        error = told.exception()
        if isinstance(error, (LeaderFencedError, TopicNotFoundError)):
            self._has_failed = True
        elif error is not None:
            _log.warning("the end of a transaction was not kept; who coordinates it next ends it again: %s", error)

    def _record(self, opened: _Opened, transactional_id: str, value: bytes | None) -> tuple[int, BatchRun, Fence]:
        number = self.partition_of(transactional_id)
        run = own_batch([(encode_key(transactional_id), value)], self._clock())
        return number, run, partial(opened.leadership.check, partitions=(number,))

    def _opened(self) -> _Opened:
        """The topic; another one if it was dropped. Raises DistlogError."""
        hosted = self._metadata.own_topic(TRANSACTIONS_TOPIC, self._partitions(), _CONFIG)
        with self._lock:
            if self._known is None or self._known.hosted is not hosted:
                self._known = _Opened(hosted)
            return self._known


def _wrote(newest: NewestStates, state: TransactionState, told: Future[AppendInfo]) -> None:
    if told.exception() is None:
        newest.wrote(state, told.result().appended.first_offset)

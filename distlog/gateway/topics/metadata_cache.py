"""The topics in the root folder, by name: Kafka's MetadataCache. A topic is opened on its first use."""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from distlog.core import errors, paths
from distlog.core.commits.commit_log import CommitLog, check_partition_count
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.format.record_batch import BatchFields
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC
from distlog.core.log.partition_log import SHORT_WAIT_S, Appended, AppendInfo, BatchRun, OpenLogs
from distlog.core.opening import copy_text
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.core.segments.producer_states import FirstBatch
from distlog.core.segments.segment_reader import TopicHandle, topic_log
from distlog.core.storage.calls import Task, in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.times import monotonic_ms
from distlog.core.topic import Topic
from distlog.gateway.config import GatewayConfig
from distlog.gateway.protocol.error_codes import AccessDeniedError, UnknownTopicIdError, log_failure
from distlog.gateway.protocol.messages import ErrorCode
from distlog.gateway.topics.gathered_appends import GatheredAppends, RequestedBatches, Results
from distlog.gateway.topics.partition import FailedBatches, Fence, Partition, RefreshingTopic
from distlog.gateway.topics.topic_index import MAX_AGE_PER_TOPIC_MS, TopicIndex, TopicSummary, client_id


class MetadataCache:
    """The topics of `root`, thread-safe. Changes by other processes apply within `metadata_max_age_ms`."""

    def __init__(
        self, root: Storage, defaults: Mapping[str, object], clock: Callable[[], int], config: GatewayConfig
    ) -> None:
        self.root, self.defaults, self._clock = root, defaults, clock
        self._config, self._max_age_ms = config, config.metadata_max_age_ms
        self._lock = threading.Lock()
        self._topics: dict[str, HostedTopic] = {}
        self._by_id: dict[uuid.UUID, HostedTopic] = {}
        self._names_by_id: Mapping[uuid.UUID, str] = {}
        # when `_names_by_id` was listed, by a monotonic clock
        self._listed_ms, self._listing_lock = float("-inf"), threading.Lock()
        self._loads = SharedLoads[HostedTopic]()
        self._missing_names = MissingNames(root.list_folders, self._max_age_ms)
        self._colliding_names = CollidingNames(root.list_folders, self._max_age_ms)
        self._logs, self._index = OpenLogs(Partition.open_log), TopicIndex(root)
        #: Flushes logs whose `flush.ms` has passed without an append. If a flush fails, the next append raises.
        self.flush_due = self._logs.flush_due
        self.failed_batches = FailedBatches()

    @property
    def loaded(self) -> dict[str, HostedTopic]:
        with self._lock:
            return dict(self._topics)

    def cached_topic(self, topic: str | uuid.UUID) -> HostedTopic | None:
        """The topic with this name or id if it was used before, else None. A dict look-up: no request, no lock."""
        return self._topics.get(topic) if isinstance(topic, str) else self._by_id.get(topic)

    def topic(self, name: str) -> HostedTopic:
        """The topic, opened if it was not used before, but not refreshed."""
        hosted = self._topics.get(name)
        return self._open(name) if hosted is None else hosted

    def fresh_topic(self, name: str) -> HostedTopic:
        """The topic, refreshed within `metadata_max_age_ms`. After a drop and a creation, it is the new topic."""
        return self._refreshed(self._max_age_ms, name)

    def _refreshed(self, max_age_ms: int, name: str) -> HostedTopic:
        hosted = self.topic(name)
        try:
            hosted.refresh(max_age_ms)
        except errors.TopicNotFoundError:
            self.forget(hosted)
            return self._open(name)
        return hosted

    def topic_of_id(self, topic_id: uuid.UUID) -> HostedTopic:
        """The topic with this id, as `fresh_topic` returns it. Raises UnknownTopicIdError, StorageError."""
        hosted = self._by_id.get(topic_id)
        if hosted is None:
            name = self._name_of_id(topic_id)  # since the listing, the name's topic may have been dropped or replaced
            with suppress(errors.TopicNotFoundError):
                if name is not None and (topic := self.fresh_topic(name)).id == topic_id:
                    return topic
            raise UnknownTopicIdError("there is no topic with this id", topic_id=topic_id)
        try:
            hosted.refresh(self._max_age_ms)
        except errors.TopicNotFoundError:
            self.forget(hosted)
            raise UnknownTopicIdError("the topic with this id was dropped", topic_id=topic_id) from None
        return hosted

    def _name_of_id(self, topic_id: uuid.UUID) -> str | None:
        """The name for an id, from a list of all topics that is reused for `metadata_max_age_ms`."""
        with self._listing_lock:
            started_ms = monotonic_ms()
            if topic_id not in self._names_by_id and started_ms - self._listed_ms >= self._max_age_ms:
                self._names_by_id, self._listed_ms = self.names_by_id(), started_ms
            return self._names_by_id.get(topic_id)

    def names_by_id(self) -> dict[uuid.UUID, str]:
        """The names of all topics that can be opened, by their ids. Raises StorageError."""
        topics = self.summaries_or_errors().items()
        return {uuid.UUID(topic.topic_id): name for name, topic in topics if isinstance(topic, TopicSummary)}

    def resolve(self, topic: str | uuid.UUID) -> HostedTopic:
        return self.fresh_topic(topic) if isinstance(topic, str) else self.topic_of_id(topic)

    def client_topic(self, topic: str | uuid.UUID) -> HostedTopic:
        """The topic, if clients may write to it and change it; else InvalidTopicError."""
        if isinstance(topic, str):
            check_not_internal(topic)
        hosted = self.resolve(topic)
        check_not_internal(hosted.name)
        return hosted

    def readable_topic(self, topic: str | uuid.UUID) -> HostedTopic:
        """The topic, if clients may read its records; else AccessDeniedError."""
        # refused before the look-up: clients must not learn whether the topic exists
        hosted = None if topic in _SECRET_TOPICS else self.resolve(topic)
        if hosted is None or hosted.name in _SECRET_TOPICS:
            code = ErrorCode.topic_authorization_failed
            raise AccessDeniedError("only the gateway reads this topic", code=code, topic=str(topic))
        return hosted

    def all_topics(self) -> dict[str, HostedTopic]:
        topics_or_errors = _results_or_errors(self.fresh_topic, self._names())
        return {name: topic for name, topic in topics_or_errors.items() if isinstance(topic, HostedTopic)}

    def summaries_or_errors(self) -> dict[str, TopicSummary | Exception]:
        """All topics by name; a topic that cannot be opened has its error, which is logged. Raises StorageError."""
        names = self._names()
        if self.root.is_local_disk:  # where refreshes are cheap; on an object store, each is a request
            return _results_or_errors(lambda name: self.fresh_topic(name).summary, names)
        loaded_names = self.loaded.keys() & names
        max_age_ms = max(self._max_age_ms, MAX_AGE_PER_TOPIC_MS * len(names))  # bounds the rate of requests
        hosted = _results_or_errors(lambda name: self._refreshed(max_age_ms, name).summary, sorted(loaded_names))
        indexed = self._index.summaries([name for name in names if name not in loaded_names], max_age_ms)
        return dict(sorted({**hosted, **_drop_missing_and_log(indexed)}.items()))

    def client_topic_names(self) -> list[str]:
        return [name for name in self.names_by_id().values() if name not in INTERNAL_TOPICS]

    def _names(self) -> list[str]:
        return sorted(name for name in self.root.list_folders() if paths.may_be_topic_folder(name))

    def create(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        self._check_name(name, partitions)
        try:
            hosted = self._create(name, partitions, config)
        except errors.TopicExistsError:
            raise errors.TopicExistsError(f"Topic '{name}' already exists.") from None
        self._colliding_names.add(name)
        return hosted

    def internal_topic(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        """One of INTERNAL_TOPICS, created if it is missing. Raises StorageError."""
        try:
            hosted = self.fresh_topic(name)
        except errors.TopicNotFoundError:
            with suppress(errors.TopicExistsError):
                self._create(name, partitions, config)
            hosted = self.fresh_topic(name)
        if hosted.topic.partitions != partitions:
            raise errors.InvalidPartitionsError(
                "the topic has another number of partitions than at the gateway's start: restart the gateway",
                topic=name,
                partitions=hosted.topic.partitions,
                expected=partitions,
            )
        return hosted

    def _create(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        storage = self.root.child(paths.check_topic_name(name))
        log = self._commit_log(storage)
        snapshot = log.create(partitions, config)
        with self._lock:
            dropped = self._topics.pop(name, None)
            if dropped is not None:
                self._by_id.pop(dropped.id, None)
        if dropped is not None:  # another process has dropped the earlier topic of this name
            dropped.close(SHORT_WAIT_S)
        return self._add(name, storage, log, snapshot)

    def check_new(self, name: str, partitions: int) -> None:
        """Raise the errors of `create`; changes nothing."""
        self._check_name(name, partitions)
        if self._exists(name):
            raise errors.TopicExistsError(f"Topic '{name}' already exists.")

    def _check_name(self, name: str, partitions: int) -> None:
        check_partition_count(partitions)
        check_not_internal(name)
        # if the topic itself exists, the caller raises TopicExistsError
        for other in self._colliding_names.collisions(name):
            if self._exists(other) and not self._exists(name):
                raise errors.InvalidTopicError(f"Topic '{name}' collides with existing topic: {other}")

    def _exists(self, name: str) -> bool:
        try:
            self.fresh_topic(name)
        except errors.TopicNotFoundError:
            return False
        except (errors.CorruptMetadataError, errors.UnsupportedVersionError):
            pass  # the topic exists, but cannot be opened
        return True

    def drop(self, name: str, topic_id: uuid.UUID | None = None) -> HostedTopic:
        hosted = self.client_topic(name)
        if topic_id not in (None, hosted.id):
            raise UnknownTopicIdError("the topic of this name has another id", topic_id=topic_id)
        hosted.topic.drop()
        self.forget(hosted)
        return hosted

    def forget(self, hosted: HostedTopic) -> None:
        with self._lock:
            if self._topics.get(hosted.name) is hosted:
                del self._topics[hosted.name]
            self._by_id.pop(hosted.id, None)
        self._index.forget(hosted.name)
        hosted.close(SHORT_WAIT_S)

    def close_unused(self, is_stopping: Callable[[], bool]) -> None:
        """Close unused logs and dropped topics, since open files keep the space of deleted segments."""
        self._logs.close_idle()
        for name in self.loaded:
            if is_stopping():
                return
            with suppress(errors.DistlogError, OSError):
                self._refreshed(IDLE_MS, name)  # closes a dropped topic

    def commit_now(self) -> None:
        for hosted in self.loaded.values():
            hosted.commit_now()

    def close(self) -> None:
        for hosted in self.loaded.values():
            hosted.close()

    def _open(self, name: str) -> HostedTopic:
        storage = self.root.child(paths.check_topic_name(name))
        # a request may have thousands of missing names, and a failed load takes a hundred times as long as this check
        if self.root.is_local_disk:
            is_missing = not os.path.isdir(self.root.local_path(name))
        else:
            is_missing = name in self._missing_names
        if is_missing:
            raise errors.TopicNotFoundError("there is no topic here", url=storage.url)
        try:
            return self._loads.get(name, lambda: self._load(name, storage))
        except errors.TopicNotFoundError:
            self._missing_names.note_miss()
            raise

    def _load(self, name: str, storage: Storage) -> HostedTopic:
        hosted = self._topics.get(name)
        if hosted is not None:  # another thread has loaded the topic concurrently
            return hosted
        log = self._commit_log(storage)
        snapshot = log.load()
        if name != snapshot.name:
            # the files name another topic, so the folder was copied or renamed: warn if that topic has the same id
            with suppress(errors.DistlogError):
                if self._commit_log(self.root.child(snapshot.name)).load().topic_id == snapshot.topic_id:
                    text = "the topic %s %s; until the copy has it, Kafka clients get another id for this topic, %s"
                    _log.warning(text, name, copy_text(snapshot.name), client_id(name, snapshot))
        return self._add(name, storage, log, snapshot)

    def _commit_log(self, storage: Storage) -> CommitLog:
        return topic_log(storage, self._clock, engine="gateway", defaults=self.defaults)

    def _add(self, name: str, storage: Storage, log: CommitLog, snapshot: Snapshot) -> HostedTopic:
        expiration_ms = self._config.producer_id_expiration_ms
        handle = TopicHandle.of(storage, snapshot.name, log, self._clock, producer_expiration_ms=expiration_ms)
        hosted = HostedTopic(name, Topic(handle, snapshot), self._logs, self._config, self.failed_batches)
        with self._lock:
            cached = self._topics.setdefault(name, hosted)  # another thread may have added the topic first
            self._by_id[cached.id] = cached
            return cached


T = TypeVar("T")
_log = logging.getLogger("distlog.gateway")


class SharedLoads(Generic[T]):
    """Loads by name, each done once for all threads that ask for the name at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads: dict[str, Task[T]] = {}

    def get(self, name: str, load: Callable[[], T]) -> T:
        """Return the result of a load. If a load that another thread began earlier failed, load once more."""
        task, is_own = self._join(name, load)
        try:
            return task.wait()  # the first thread that waits runs the load
        except errors.DistlogError:
            if is_own:
                raise
        return self._join(name, load)[0].wait()

    def _join(self, name: str, load: Callable[[], T]) -> tuple[Task[T], bool]:
        with self._lock:
            if name in self._loads:
                return self._loads[name], False
            task = self._loads[name] = Task(partial(self._load, name, load))
            return task, True

    def _load(self, name: str, load: Callable[[], T]) -> T:
        try:
            return load()
        finally:
            # remove the task before it has its result, so that a later call starts a new load
            with self._lock:
                del self._loads[name]


class HostedTopic(RefreshingTopic):
    """The topic in the folder `name`, thread-safe. `logs` keeps the files of its partitions open."""

    def __init__(
        self, name: str, topic: Topic, logs: OpenLogs[Partition], config: GatewayConfig, failed_batches: FailedBatches
    ) -> None:
        super().__init__(name, topic)
        self.id = uuid.UUID(client_id(name, topic.snapshot))
        self._failed_batches = failed_batches
        self._gathered = GatheredAppends(self, config.linger_ms, config.linger_bytes, self._first_batch_check)
        self._logs, self._partitions_lock = logs, threading.Lock()
        self._partitions: dict[int, Partition] = {}
        self.commit_now = self._gathered.commit_now

    @property
    def summary(self) -> TopicSummary:
        return TopicSummary(self.name, str(self.id), len(self.snapshot.partitions))

    def partition(self, number: int) -> Partition:
        partition = self._partitions.get(number)
        if partition is None:
            if not 0 <= number < len(self.snapshot.partitions):
                raise errors.TopicNotFoundError("the partition does not exist", topic=self.name, partition=number)
            with self._partitions_lock:
                new = Partition(self, number, self._logs, self._first_batch_check(number))
                partition = self._partitions.setdefault(number, new)
        return partition

    def _first_batch_check(self, number: int) -> FirstBatch:
        """Return a check for the first batch that a log gets of a producer: refused if a batch sent before failed."""

        def check(batch: BatchFields) -> None:
            for topic in (self.name, self.id):  # Produce notes a failed batch by the requested name or id
                self._failed_batches.check(topic, number, batch)

        return check

    def append_later(self, requested: RequestedBatches, connection: object | None = None) -> Results:
        """On an object store, append batches with the next commit; see `GatheredAppends.append`."""
        return self._gathered.append(requested, connection)

    def append_run(self, number: int, run: BatchRun, fence: Fence, *, is_durable: bool = True) -> Appended:
        """Append a batch of the gateway unless `fence` refuses, and fsync it if it `is_durable`."""
        partition = self.partition(number)
        if not self.is_local:
            return self._gathered.append_runs({number: run}, fence)[number].result().appended
        appended = partition.append_run(run, fence)
        if is_durable:
            partition.sync(appended)
        return appended

    def append_run_later(self, number: int, run: BatchRun, fence: Fence) -> Future[AppendInfo]:
        return self._gathered.append_runs({number: run}, fence, at_once=False)[number]

    def end_transaction(
        self, markers: Mapping[int, BatchRun], fence: Fence, *, timeout_s: float | None = None
    ) -> dict[int, Future[Any]]:
        """Write durable end markers of a producer's transaction, unless `fence` refuses. The call may be repeated."""
        if not self.is_local:
            # commit even if no transaction is open: a batch in flight then conflicts, and its fence refuses it
            return dict(self._gathered.append_runs(markers, fence))

        def end(number: int) -> Future[None]:
            result: Future[None] = Future()
            try:
                partition = self.partition(number)
                appended = partition.end_transaction(markers[number], fence, timeout_s=timeout_s)
                # for None, `sync` flushes the whole log, since a marker may exist, but not be durable
                partition.sync(appended, timeout_s=timeout_s)
                result.set_result(None)
            except Exception as error:
                result.set_exception(error)
            return result

        return dict(zip(markers, in_parallel(end, markers), strict=True))

    def close(self, timeout_s: float | None = None) -> None:
        """Sync all appends, and close the files; wait for each lock for `timeout_s`."""
        self._gathered.close()
        with self._partitions_lock:
            partitions = list(self._partitions.values())
        for partition in partitions:
            with suppress(errors.DistlogError):
                self._logs.close(partition, timeout_s)


#: After this many look-ups of missing topics, the next names are looked up in a listing.
_MANY_MISSES = 10


class MissingNames:
    """The names that no folder of a root has. Thread-safe."""

    def __init__(self, list_folders: Callable[[], Sequence[str]], max_age_ms: int) -> None:
        self._list_folders, self._max_age_ms, self._lock = list_folders, max_age_ms, threading.Lock()
        self._folders, self._listed_ms, self._misses = frozenset[str](), float("-inf"), 0

    def __contains__(self, name: str) -> bool:
        """Whether a recent listing lacks the name. After many misses, lists the folders, and counts from 0 again."""
        with self._lock:
            if self._misses >= _MANY_MISSES:
                self._misses, listed_ms = 0, monotonic_ms()
                with suppress(errors.DistlogError):  # if the listing fails, each name is looked up alone
                    self._folders, self._listed_ms = frozenset(self._list_folders()), listed_ms
            return monotonic_ms() - self._listed_ms < self._max_age_ms and name not in self._folders

    def note_miss(self) -> None:
        with self._lock:
            self._misses += 1


class CollidingNames:
    """Finds folders of a root whose names differ only in `.` and `_`, as Kafka does. Thread-safe."""

    def __init__(self, list_folders: Callable[[], Sequence[str]], max_age_ms: int) -> None:
        self._list_folders, self._max_age_ms, self._lock = list_folders, max_age_ms, threading.Lock()
        self._names, self._listed_ms = defaultdict[str, set[str]](set), float("-inf")

    def collisions(self, name: str) -> list[str]:
        """The other folders whose names collide with this one. Raises StorageError."""
        if not {".", "_"} & {*name}:
            return []
        with self._lock:
            listed_ms = monotonic_ms()
            if listed_ms - self._listed_ms >= self._max_age_ms:
                self._names.clear()
                for folder in filter(paths.may_be_topic_folder, self._list_folders()):
                    self._names[folder.replace(".", "_")].add(folder)
                self._listed_ms = listed_ms
            return sorted(self._names.get(name.replace(".", "_"), set()) - {name})

    def add(self, name: str) -> None:
        with self._lock:
            self._names[name.replace(".", "_")].add(name)


#: How often an unused topic on an object store is refreshed, to find out whether the topic was dropped.
IDLE_MS = 3_600_000
#: CONFIGS_TOPIC has the quotas of clients and the settings of groups.
CONFIGS_TOPIC, ACLS_TOPIC, CREDENTIALS_TOPIC = "__dynamic_configs", "__acls", "__user_credentials"
#: The topics that only gateways write. No client may read the secret topics.
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, CONFIGS_TOPIC, ACLS_TOPIC, CREDENTIALS_TOPIC})
_SECRET_TOPICS = frozenset({ACLS_TOPIC, CREDENTIALS_TOPIC})


def check_not_internal(name: str) -> None:
    if name in INTERNAL_TOPICS:
        raise errors.InvalidTopicError("only gateways write and change this internal topic", topic=name)


def _results_or_errors(find: Callable[[str], T], names: Sequence[str]) -> dict[str, T | Exception]:
    """The result of `find` for each name, or its error, since an unreadable topic must not hide other topics."""

    def result_of(name: str) -> T | Exception:
        try:
            return find(name)
        except Exception as error:
            return error

    return _drop_missing_and_log(dict(zip(names, in_parallel(result_of, names), strict=True)))


def _drop_missing_and_log(topics: Mapping[str, T | Exception]) -> dict[str, T | Exception]:
    results = {name: result for name, result in topics.items() if not isinstance(result, errors.TopicNotFoundError)}
    for name, result in results.items():
        if isinstance(result, Exception):
            log_failure(result, f"topic {name}")
    return results

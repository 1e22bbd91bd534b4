"""The topics of the root, by name: Kafka's MetadataCache. A topic is opened when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.creation import check_partition_count
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.consumer_offsets.positions_format import OFFSETS_TOPIC
from distlog.core.errors import InvalidPartitionsError, InvalidTopicError, TopicExistsError, TopicNotFoundError
from distlog.core.following.group_positions import forget_dropped
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic
from distlog.gateway.config import GatewayConfig
from distlog.gateway.topics.failed_batches import FailedBatches
from distlog.gateway.topics.hosted_topic import HostedTopic
from distlog.gateway.topics.open_logs import OpenLogs
from distlog.gateway.topics.own_topics import TRANSACTIONS_TOPIC
from distlog.gateway.topics.shared_loads import SharedLoads


class MetadataCache:
    """The topics below `root`, for many threads. `defaults` are settings for what a topic does not set itself.

    What another process changes is seen within `metadata_max_age_ms`, and a new topic when it is asked for.
    """

    def __init__(
        self, root: Storage, defaults: Mapping[str, object], clock: Callable[[], int], config: GatewayConfig
    ) -> None:
        self.root, self.defaults, self._clock = root, defaults, clock
        self._max_age_ms, self._linger = config.metadata_max_age_ms, (config.linger_ms, config.linger_bytes)
        self._lock = threading.Lock()
        self._topics: dict[str, HostedTopic] = {}
        self._loads = SharedLoads[HostedTopic]()
        self._logs = OpenLogs()
        #: Batches of producers that failed in this gateway, and will come again.
        self.failed = FailedBatches()

    @property
    def loaded(self) -> dict[str, HostedTopic]:
        """The topics that were asked for so far, by name."""
        with self._lock:
            return dict(self._topics)

    def topic(self, name: str) -> HostedTopic:
        """The topic with this name. Raises TopicNotFoundError, InvalidTopicError, StorageError."""
        hosted = self._topics.get(name)
        return self._open(name) if hosted is None else hosted

    def fresh_topic(self, name: str) -> HostedTopic:
        """The topic, as it was at most `metadata_max_age_ms` ago; the new one if it was dropped and created again."""
        hosted = self.topic(name)
        try:
            hosted.refresh(self._max_age_ms)
        except TopicNotFoundError:
            self.forget(hosted)
            return self._open(name)
        return hosted

    def clients_topic(self, name: str) -> HostedTopic:
        """The topic, as `fresh_topic` has it, if clients may write to it and change it; else InvalidTopicError."""
        check_not_own(name)
        return self.fresh_topic(name)

    def all_topics(self) -> dict[str, HostedTopic]:
        """All topics that there are now, by name. Raises StorageError."""
        names = sorted(name for name in self.root.list_folders() if _may_be_topic(name))
        found = in_parallel(partial(_or_none, self.fresh_topic), names)
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}

    def create(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        """Create a topic. Raises TopicExistsError, InvalidTopicError, InvalidPartitionsError, StorageError."""
        check_partition_count(partitions)
        check_not_own(name)
        return self._create(name, partitions, config)

    def own_topic(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        """A topic of the gateways themselves, made if it is not there. Raises StorageError.

        Raises InvalidPartitionsError if it has another number of partitions.
        """
        try:
            hosted = self.fresh_topic(name)
        except TopicNotFoundError:
            with suppress(TopicExistsError):
                # another gateway may be faster
                self._create(name, partitions, config)
            hosted = self.fresh_topic(name)
        if hosted.topic.partitions != partitions:
            raise InvalidPartitionsError("the topic has another number of partitions than that of groups", topic=name)
        return hosted

    def _create(self, name: str, partitions: int, config: TopicConfig) -> HostedTopic:
        storage = self.root.child(paths.check_topic_name(name))
        log = self._log(storage)
        snapshot = log.create(partitions, config)
        forget_dropped(TopicHandle.of(storage, snapshot.name, log, self._clock), snapshot)
        with self._lock:
            dropped = self._topics.pop(name, None)
        if dropped is not None:
            # another process has ended it
            dropped.close()
        return self._keep(name, storage, log, snapshot)

    def check_new(self, name: str, partitions: int) -> None:
        """Raise what `create` would raise; nothing is changed."""
        check_partition_count(partitions)
        check_not_own(name)
        with suppress(TopicNotFoundError):
            raise TopicExistsError("the topic exists already", url=self.fresh_topic(name).topic.url)

    def drop(self, name: str) -> HostedTopic:
        """End a topic; returns it as it was. Raises TopicNotFoundError, InvalidTopicError, StorageError."""
        hosted = self.clients_topic(name)
        hosted.topic.drop()
        self.forget(hosted)
        return hosted

    def forget(self, hosted: HostedTopic) -> None:
        """Let go of a topic that was dropped."""
        with self._lock:
            if self._topics.get(hosted.name) is hosted:
                del self._topics[hosted.name]
        hosted.close()

    def hurry(self) -> None:
        """Let no append wait for others: the gateway ends."""
        for hosted in self.loaded.values():
            hosted.hurry()

    def flush_due(self) -> None:
        """Flush what `flush.ms` asks for, while nobody appends. An error is told to who appends next."""
        self._logs.flush_due()

    def close(self) -> None:
        """Close all topics; each is as after a clean shutdown."""
        for hosted in self.loaded.values():
            hosted.close()

    def _open(self, name: str) -> HostedTopic:
        storage = self.root.child(paths.check_topic_name(name))
        return self._loads.get(name, lambda: self._loaded_now(name, storage))

    def _loaded_now(self, name: str, storage: Storage) -> HostedTopic:
        hosted = self._topics.get(name)
        if hosted is not None:
            # it came between the caller's look and this load
            return hosted
        log = self._log(storage)
        return self._keep(name, storage, log, log.load())

    def _log(self, storage: Storage) -> CommitLog:
        return topic_log(storage, self._clock, engine="gateway", defaults=self.defaults)

    def _keep(self, name: str, storage: Storage, log: CommitLog, snapshot: Snapshot) -> HostedTopic:
        topic = Topic(TopicHandle.of(storage, snapshot.name, log, self._clock), snapshot)
        with self._lock:
            # another thread may have been faster
            hosted = HostedTopic(name, topic, self._logs, *self._linger, self.failed)
            return self._topics.setdefault(name, hosted)


def topic_defaults(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of topics that Kafka's broker settings stand for. Raises InvalidConfigError."""
    return BrokerConfig.parse(settings).topic_defaults


def check_not_own(name: str) -> None:
    """Raise InvalidTopicError for the topics of groups and transactions: these would not know what clients do."""
    if name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):
        raise InvalidTopicError("the gateway alone writes and changes this topic", topic=name)


def _may_be_topic(name: str) -> bool:
    try:
        return bool(paths.check_topic_name(name)) and name not in (paths.COMMITS_DIR, paths.GROUPS_DIR)
    except InvalidTopicError:
        return False


def _or_none(find: Callable[[str], HostedTopic], name: str) -> HostedTopic | None:
    try:
        return find(name)
    except TopicNotFoundError:
        return None

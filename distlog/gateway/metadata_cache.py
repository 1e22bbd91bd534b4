"""The topics of the root, by name: Kafka's MetadataCache. A topic is opened when it is first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from distlog.core import paths
from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic
from distlog.gateway.hosted_topic import HostedTopic
from distlog.gateway.open_logs import OpenLogs


class MetadataCache:
    """The topics below `root`, for many threads. `defaults` are settings for what a topic does not set itself.

    What another process changes is seen within `max_age_ms`, and a new topic when it is asked for.
    """

    def __init__(
        self, root: Storage, defaults: Mapping[str, object], clock: Callable[[], int], max_age_ms: int
    ) -> None:
        self.root, self._defaults, self._clock, self._max_age_ms = root, defaults, clock, max_age_ms
        self._lock = threading.Lock()
        self._topics: dict[str, HostedTopic] = {}
        self._logs = OpenLogs()

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
        """The topic as it is now, or was `max_age_ms` ago; another one if it was dropped and created again."""
        hosted = self.topic(name)
        try:
            hosted.refresh(self._max_age_ms)
        except TopicNotFoundError:
            self.forget(hosted)
            return self._open(name)
        return hosted

    def all_topics(self) -> dict[str, HostedTopic]:
        """All topics that there are now, by name. Raises StorageError."""
        names = sorted(name for name in self.root.list_folders() if _may_be_topic(name))
        found = in_parallel(partial(_or_none, self.fresh_topic), names)
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}

    def forget(self, hosted: HostedTopic) -> None:
        """Let go of a topic that was dropped."""
        with self._lock:
            if self._topics.get(hosted.name) is hosted:
                del self._topics[hosted.name]
        hosted.close()

    def close(self) -> None:
        """Close all topics; each is as after a clean shutdown."""
        for hosted in self.loaded.values():
            hosted.close()

    def _open(self, name: str) -> HostedTopic:
        storage = self.root.child(paths.check_topic_name(name))
        log = topic_log(storage, self._clock, engine="gateway", defaults=self._defaults)
        snapshot = log.load()
        topic = Topic(TopicHandle.of(storage, snapshot.name, log, self._clock), snapshot)
        with self._lock:
            # another thread may have been faster
            return self._topics.setdefault(name, HostedTopic(name, topic, self._logs))


def topic_defaults(settings: Mapping[str, object]) -> Mapping[str, object]:
    """The settings of topics that Kafka's broker settings stand for. Raises InvalidConfigError."""
    return BrokerConfig.parse(settings).topic_defaults


def _may_be_topic(name: str) -> bool:
    try:
        return bool(paths.check_topic_name(name)) and name != paths.COMMITS_DIR
    except InvalidTopicError:
        return False


def _or_none(find: Callable[[str], HostedTopic], name: str) -> HostedTopic | None:
    try:
        return find(name)
    except TopicNotFoundError:
        return None

"""Creates a topic, or opens one that exists."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from distlog.core import paths
from distlog.core.commits.format.actions import MAX_PARTITIONS
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError, TopicExistsError, TopicNotFoundError
from distlog.core.following.group_positions import forget_dropped
from distlog.core.storage.parallel import in_order
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic
from distlog.core.whole_number import whole_number

StorageOptions = Mapping[str, Any]
#: How many topics are opened at the same time.
_OPENED = 8


def create(
    url: str,
    partitions: int = 1,
    config: Mapping[str, object] | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Create a topic at `url`, any fsspec URL or local path, whose last part is the topic's name.

    Raises TopicExistsError, InvalidTopicError, InvalidConfigError, or StorageError when the storage cannot hold
    a log (it must refuse to overwrite when asked to).
    """
    partitions = whole_number("partitions", partitions)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidConfigError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=partitions)
    storage = Storage(url, storage_options)
    log = topic_log(storage)
    snapshot = log.create(partitions, TopicConfig.parse(config or {}))
    handle = TopicHandle.of(storage, snapshot.name, log)
    forget_dropped(handle, snapshot)
    return Topic(handle, snapshot)


def open(
    url: str,
    version: int | None = None,
    timestamp: Time | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Open the topic at `url`: its newest version, or read-only at a version or a time.

    Raises TopicNotFoundError if there is none, OffsetOutOfRangeError if it has no such version, or none yet at that
    time, InvalidConfigError for a version that is no number.
    """
    if version is not None and timestamp is not None:
        raise ValueError("give a version or a timestamp to open a topic at, not both")
    number = None if version is None else whole_number("version", version)
    storage = Storage(url, storage_options)
    log = topic_log(storage)
    timestamp_ms = None if timestamp is None else to_ms(timestamp)
    snapshot = log.load(version=number, timestamp_ms=timestamp_ms)
    handle = TopicHandle.of(storage, snapshot.name, log)
    return Topic(handle, snapshot, pinned=version is not None or timestamp is not None)


def open_or_create(
    url: str,
    partitions: int | None = None,
    config: Mapping[str, object] | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Open the topic at `url`, or create it if there is none; also if another process creates it meanwhile.

    `config` is for a new topic. Raises InvalidConfigError if the topic has another number of partitions than
    `partitions`, and what `create` and `open` raise.
    """
    try:
        topic = open(url, storage_options=storage_options)
    except TopicNotFoundError:
        with suppress(TopicExistsError):
            return create(url, 1 if partitions is None else partitions, config, storage_options)
        topic = open(url, storage_options=storage_options)
    if partitions not in (None, topic.partitions):
        raise InvalidConfigError(
            "the topic exists with another number of partitions: do not give one, or give this",
            partitions=topic.partitions,
            asked=partitions,
        )
    return topic


def topics(root: str, storage_options: StorageOptions | None = None) -> list[Topic]:
    """The topics right below the folder `root`, opened, by name; those that were dropped are left out."""

    def opened(storage: Storage) -> Topic | None:
        with suppress(TopicNotFoundError):
            return open(storage.url, storage_options=storage_options)
        return None

    found = in_order((partial(opened, storage) for storage in find_topics(Storage(root, storage_options))), _OPENED)
    return [topic for topic in found if topic is not None]


def find_topics(root: Storage) -> list[Storage]:
    """The folders right below `root` that hold commits, by name: its topics, and those that were dropped."""
    names = (name for name in root.list_folders() if name != paths.COMMITS_DIR)
    return [root.child(name) for name in sorted(names) if f"{name}/{paths.COMMITS_DIR}" in root.list_folders(name)]

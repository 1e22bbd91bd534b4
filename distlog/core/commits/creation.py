"""The actions that begin a topic."""

from __future__ import annotations

from distlog.core import paths
from distlog.core.commits.format.actions import MAX_PARTITIONS, Action, Create, SetConfig, SetPartitions
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidPartitionsError


def creation(url: str, partitions: int, config: TopicConfig) -> list[Action]:
    """The actions of a new topic at `url`, whose last part is its name.

    Raises InvalidTopicError, and InvalidPartitionsError for a number of partitions that no topic has.
    """
    check_partition_count(partitions)
    name = paths.check_topic_name(url.rstrip("/").rpartition("/")[2])
    settings = {setting: str(value) for setting, value in config.overrides().items()}
    return [Create(name), SetPartitions(partitions), SetConfig(settings)]


def check_partition_count(count: int) -> None:
    """Raise InvalidPartitionsError for a number of partitions that no topic has."""
    if not 1 <= count <= MAX_PARTITIONS:
        raise InvalidPartitionsError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=count)

"""What a write must know of its topic: small enough to travel to the planner and the tasks, as no snapshot is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from distlog.core.commits import fields
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.commits.fields import LONG, UUID, Integer, stored
from distlog.core.commits.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidConfigError
from distlog.core.paths import check_topic_name
from distlog.core.topics.append import BatchId, replayed


def _config(settings: Any) -> TopicConfig:
    return TopicConfig.stored(fields.settings(settings))


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic at `version`, which is that of the files that are begun from here on.

    `is_done` says that the write's (app_id, batch_id) was committed by then.
    """

    version: int = stored(LONG)
    topic_id: str = stored(UUID)
    name: str = stored(check_topic_name)
    config: TopicConfig = stored(_config)
    partitions: int = stored(Integer(1, MAX_PARTITIONS))
    is_done: bool = stored(fields.boolean)

    @classmethod
    def of(cls, snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None) -> TopicFacts:
        """The facts of `snapshot`, for the write (app_id, batch_id)."""
        return cls(
            snapshot.version,
            snapshot.topic_id,
            snapshot.name,
            snapshot.config,
            len(snapshot.partitions),
            replayed(snapshot, app_id, batch_id) is not None,
        )

    def __str__(self) -> str:
        return json.dumps({**fields.write(self), "config": self.config.overrides()})

    @classmethod
    def parse(cls, text: str) -> TopicFacts:
        """The facts from their text; InvalidConfigError for any other."""
        try:
            return fields.read(cls, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidConfigError(f"option topicFacts is for distlog.spark.append to give: {error}") from None

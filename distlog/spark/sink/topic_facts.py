"""The facts that a write needs about its topic. Unlike a snapshot, they are small enough to send to every task."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from distlog.core.commits.format import fields
from distlog.core.commits.format.actions import MAX_PARTITIONS
from distlog.core.commits.format.fields import LONG, UUID, Integer, optional, stored
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import CommitConflictError, InvalidConfigError
from distlog.core.paths import check_topic_name
from distlog.core.topics.appending.append_commit import BatchId, replayed


def _config(settings: Any) -> TopicConfig:
    return TopicConfig.stored(fields.settings(settings))


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic at `version`. Files that the write begins get this version.

    `done_in` is the version that already committed the write's (app_id, batch_id), or None.
    """

    version: int = stored(LONG)
    topic_id: str = stored(UUID)
    name: str = stored(check_topic_name)
    config: TopicConfig = stored(_config)
    partitions: int = stored(Integer(1, MAX_PARTITIONS))
    done_in: int | None = stored(optional(LONG))

    @classmethod
    def of(cls, snapshot: Snapshot, app_id: str | None, batch_id: BatchId | None) -> TopicFacts:
        """The facts of `snapshot`, for the write (app_id, batch_id)."""
        done = replayed(snapshot, app_id, batch_id)
        return cls(
            snapshot.version,
            snapshot.topic_id,
            snapshot.name,
            snapshot.config,
            len(snapshot.partitions),
            done.version if done else None,
        )

    @property
    def is_done(self) -> bool:
        """Whether the batch is committed already, so that nothing is left to write."""
        return self.done_in is not None

    def check(self, head: Snapshot) -> None:
        """Raise CommitConflictError unless these facts are of `head`'s topic, at its version or an earlier one."""
        if self.topic_id != head.topic_id:
            raise CommitConflictError(
                "nothing was committed: the topic was dropped and created again meanwhile; write again"
            )
        if self.name != head.name or self.version > head.version:
            raise CommitConflictError(
                "nothing was committed: option topicFacts does not fit the topic; leave the option out",
                name=self.name,
                version=self.version,
            )

    def __str__(self) -> str:
        return json.dumps({**fields.write(self), "config": self.config.overrides()})

    @classmethod
    def parse(cls, text: str) -> TopicFacts:
        """The facts from the text that `str` gives. Raises InvalidConfigError for any other text."""
        try:
            return fields.read(cls, json.loads(text))
        except (ValueError, RecursionError) as error:
            raise InvalidConfigError(
                f"only distlog.spark.append may give option topicFacts; leave it out: {error}"
            ) from None

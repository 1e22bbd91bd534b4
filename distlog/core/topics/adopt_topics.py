"""Makes topics of what a Kafka broker left: `distlog.adopt`."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from distlog.core.config import TopicConfig
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.errors import DistlogError, InvalidTopicError
from distlog.core.kafka_directory.adopt import AdoptedTopic, adopt_topic, by_topic
from distlog.core.kafka_directory.broker_lock import without_broker
from distlog.core.kafka_directory.directory_names import PartitionName
from distlog.core.kafka_directory.log_dir import LogDir, read_log_dir
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic

_COLUMNS = (
    ("topic", pa.string()),
    *((name, pa.int64()) for name in ("partition", "log_start_offset", "log_end_offset", "segments", "bytes")),
)
#: The settings of a broker's topics are not in its log directory: nothing must be deleted for want of them.
_KEEP_ALL = {"retention.ms": "-1"}


@dataclass(frozen=True, slots=True, repr=False)
class AdoptReport(Shown):
    """What was adopted, or would be with `dry_run`, and what was cut, left out or made anew on the way.

    `topics` are the topics that were made, or that an earlier adoption of the same made, by name. `left_out` says
    which folders were not taken, and why.
    """

    adopted: tuple[AdoptedTopic, ...]
    topics: Mapping[str, Topic]
    left_out: Mapping[str, str]
    dry_run: bool = False

    @property
    def topic(self) -> Topic:
        """The topic, if it is one. Raises the error for which it was not adopted."""
        if len(self.adopted) != 1:
            raise InvalidTopicError("there are several topics: take them from `topics`", topics=len(self.adopted))
        if error := self.adopted[0].error:
            raise error
        if self.dry_run and not self.topics:
            raise InvalidTopicError("a dry run makes no topic", topic=self.adopted[0].name)
        return self.topics[self.adopted[0].name]

    @property
    def ok(self) -> bool:
        """Whether every topic was adopted."""
        return all(each.error is None for each in self.adopted)

    @property
    def notes(self) -> tuple[str, ...]:
        """What was cut, left out or made anew, and why a topic was not adopted: a line each."""
        folders = [f"{folder}: {reason}; it was left out" for folder, reason in self.left_out.items()]
        topics = [f"{each.name}: {note}" for each in self.adopted for note in each.notes]
        there = [f"{each.name}: was adopted before" for each in self.adopted if each.was_there]
        errors = [f"{each.name}: not adopted: {each.error}" for each in self.adopted if each.error]
        return (*folders, *topics, *there, *errors)

    def __str__(self) -> str:
        done = [each for each in self.adopted if not each.error and not each.was_there]
        verb = "would adopt" if self.dry_run else "adopted"
        size = sum(partition.log_bytes for each in done for partition in each.partitions)
        failed = f"; {counted(len(self.adopted) - sum(not each.error for each in self.adopted), 'topic')} failed"
        head = f"{verb} {counted(len(done), 'topic')}, {counted(size, 'byte')}{'' if self.ok else failed}"
        return "\n".join([head, *self.notes])

    def to_table(self) -> pa.Table:
        """A row per partition."""
        return pa.Table.from_pylist(self._rows(), pa.schema(_COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        """Every topic with its address, and the rows of the table."""
        topics = [
            {"topic": each.name, "url": each.url, "error": str(each.error) if each.error else None}
            for each in self.adopted
        ]
        return {
            "ok": self.ok,
            "dry_run": self.dry_run,
            "topics": topics,
            "partitions": self._rows(),
            "notes": list(self.notes),
        }

    def _rows(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": each.name,
                "partition": partition.name.partition,
                "log_start_offset": partition.log_start_offset,
                "log_end_offset": partition.log_end_offset,
                "segments": len(partition.segments),
                "bytes": partition.log_bytes,
            }
            for each in self.adopted
            for partition in each.partitions
        ]


def adopt(
    directory: str | os.PathLike[str],
    url: str | None = None,
    *,
    topics: Iterable[str] | None = None,
    config: Mapping[str, object] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> AdoptReport:
    """Make topics of a stopped broker's log directory, or of one partition's folder in it.

    Without `url` it is done in place: each topic's folder is made in the log directory, and the broker's files get
    second names in it; nothing is copied, and the broker's folders stay as they are. With `url` the files are copied:
    the topic of a partition's folder to `url`, those of a log directory to folders of their names in `url`. Both may
    be on object storage, with the same `storage_options`; there files are copied in place, too.

    `topics` names those to adopt; default all. The settings of a broker's topics are not in its log directory: they
    are `config`, and without `retention.ms` nothing is deleted. What is not whole is cut, as a broker would cut it,
    or its topic is not adopted; the report says so. Each topic is made by one commit. Call it again after a crash: it
    goes on, and leaves topics as they are that it has made.

    Raises InvalidTopicError for a directory that is no broker's, StorageError where a broker may be running,
    InvalidConfigError; for a partition's folder also the error for which it cannot be adopted.
    """
    settings = TopicConfig.parse({**_KEEP_ALL, **(config or {})})
    log_dir, only = read_log_dir(directory, storage_options)
    chosen = by_topic([only] if only else _chosen(log_dir, topics))
    root = Storage(url, storage_options) if url else log_dir.storage
    made = dict[str, Topic]()
    with without_broker(log_dir.storage):
        adopted = []
        for name, partitions in chosen.items():
            target = root if url and only else root.child(name)
            work = partial(
                _adopt, log_dir, partitions, target, settings, in_place=not url, dry_run=dry_run, made=made
            )
            adopted.append(work() if only else _or_error(work, name, target))
    return AdoptReport(tuple(adopted), made, {} if only else log_dir.left_out, dry_run)


def _chosen(log_dir: LogDir, topics: Iterable[str] | None) -> list[PartitionName]:
    if topics is None:
        return list(log_dir.partitions)
    wanted = set(topics)
    missing = wanted - {name.topic for name in log_dir.partitions}
    if missing:
        raise InvalidTopicError("the log directory has no partition of this topic", topic=min(missing))
    return [name for name in log_dir.partitions if name.topic in wanted]


def _adopt(
    log_dir: LogDir,
    partitions: list[PartitionName],
    target: Storage,
    settings: TopicConfig,
    *,
    in_place: bool,
    dry_run: bool,
    made: dict[str, Topic],
) -> AdoptedTopic:
    adopted, log, snapshot = adopt_topic(
        log_dir, partitions, target, topic_log, settings, in_place=in_place, dry_run=dry_run
    )
    if snapshot is not None:
        made[adopted.name] = Topic(TopicHandle.of(target, snapshot.name, log), snapshot)
    return adopted


def _or_error(work: Any, name: str, target: Storage) -> AdoptedTopic:
    """The result of `work`; an error of one topic does not keep the others from being adopted."""
    try:
        adopted: AdoptedTopic = work()
    except DistlogError as error:
        return dataclasses.replace(AdoptedTopic(name, target.url), error=error)
    return adopted

"""Adoption: the partitions in a stopped broker's log directory become topics, in place or as copies.

All files of a topic are put in place first, and then one commit makes the topic. A crash before it leaves the
broker's files as they were; adopt again. The files are looked at as a broker does when it starts (`LogLoader`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.format.actions import Action
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.config import TopicConfig
from distlog.core.errors import DistlogError, InvalidTopicError, StorageError, TopicExistsError, TopicNotFoundError
from distlog.core.kafka_directory.adoption_mark import adopting, end, is_marked
from distlog.core.kafka_directory.directory_names import PartitionName, parse_partition_folder
from distlog.core.kafka_directory.log_dir import LogDir
from distlog.core.kafka_directory.placed_files import place, placed
from distlog.core.kafka_directory.taken_partition import TakenPartition, take_partition
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class AdoptedTopic:
    """What became of a topic of the log directory, at `url`; `error` says why it was not adopted.

    `partitions` are those that the log directory has. `was_there` means that an earlier adoption took it.
    """

    name: str
    url: str
    partitions: tuple[TakenPartition, ...] = ()
    notes: tuple[str, ...] = ()
    was_there: bool = False
    error: DistlogError | None = None


def adopt_topic(
    log_dir: LogDir,
    names: Sequence[PartitionName],
    topic: Storage,
    open_log: Callable[[Storage], CommitLog],
    config: TopicConfig,
    *,
    in_place: bool,
    dry_run: bool = False,
) -> tuple[AdoptedTopic, CommitLog, Snapshot | None]:
    """Adopt the partitions `names`, all of one topic, as the topic at `topic`; returns its snapshot too.

    There is no snapshot with `dry_run`. Raises TopicExistsError for another topic at that address, now or before.
    """
    log, name = open_log(topic), paths.check_topic_name(topic.url.rstrip("/").rpartition("/")[2])
    if in_place and parse_partition_folder(name) is not None:
        text = "a topic of this name cannot be adopted in place: its folder would look like a partition's; copy it"
        raise InvalidTopicError(text, topic=name)
    interval = config.index_interval_bytes
    taken = tuple(in_parallel(lambda each: take_partition(log_dir, each, interval), names))
    # before anything is put in place
    topic_id = _topic_id(taken)
    adopted = AdoptedTopic(name, topic.url, taken, tuple(_notes(taken)))
    standing = _standing(log, topic, topic_id)
    if standing is not None:
        end(topic)
        return AdoptedTopic(name, topic.url, taken, was_there=True), log, standing
    if dry_run:
        return adopted, log, None
    if (found := placed(topic, name, taken)) and not is_marked(topic):
        text = "other files are where the topic's would be: adopt to another address, or delete them"
        raise StorageError(text, url=topic.url, file=found[0])
    with adopting(topic):
        # another adoption may have ended since
        snapshot = _standing(log, topic, topic_id)
        if snapshot is not None:
            adopted = dataclasses.replace(adopted, notes=(), was_there=True)
        else:
            _place(topic, name, taken, linked=in_place and topic.is_local)
            snapshot = _commit(log, taken, topic_id, config)
        end(topic)
    return adopted, log, snapshot


def _place(topic: Storage, name: str, taken: Sequence[TakenPartition], *, linked: bool) -> None:
    """Put all files in place, instead of those that an adoption left that died; after an error there are none."""
    topic.delete(placed(topic, name, taken))
    try:
        for partition in taken:
            place(topic, name, partition, linked=linked)
    except DistlogError:
        with suppress(StorageError):
            topic.delete(placed(topic, name, taken))
            end(topic)
        raise


def _commit(log: CommitLog, taken: Sequence[TakenPartition], topic_id: str | None, config: TopicConfig) -> Snapshot:
    contents: list[Action] = [action for partition in taken for action in partition.actions()]
    count = max(partition.name.partition for partition in taken) + 1
    return log.create(count, config, topic_id=topic_id, imported=contents)


def _topic_id(taken: Sequence[TakenPartition]) -> str | None:
    """The id that all partitions have; None if a broker gave them none."""
    found = {partition.topic_id for partition in taken}
    if len(found) > 1:
        text = "by their partition.metadata, the partitions are of different topics of one name: adopt them apart"
        raise InvalidTopicError(text, topic=taken[0].name.topic)
    (topic_id,) = found
    return None if topic_id is None else str(topic_id)


def _standing(log: CommitLog, topic: Storage, topic_id: str | None) -> Snapshot | None:
    """The topic at the address if an earlier adoption of the same topic made it; None if there is nothing."""
    try:
        snapshot = log.load(include_dropped=True)
    except TopicNotFoundError:
        return None
    if not snapshot.dropped and snapshot.topic_id == topic_id:
        return snapshot
    text = "there is another topic at this address, or there was: adopt to another address"
    raise TopicExistsError(text, url=topic.url)


def _notes(taken: Sequence[TakenPartition]) -> list[str]:
    here = {partition.name.partition for partition in taken}
    absent = sorted(set(range(max(here) + 1)) - here)
    notes = [f"partition {number} is not in this directory: it is empty here" for number in absent]
    return notes + [
        f"partition {partition.name.partition}: {note}" for partition in taken for note in partition.notes
    ]


def by_topic(names: Sequence[PartitionName]) -> Mapping[str, list[PartitionName]]:
    """The partitions of each topic."""
    topics = dict[str, list[PartitionName]]()
    for name in sorted(names):
        topics.setdefault(name.topic, []).append(name)
    return topics

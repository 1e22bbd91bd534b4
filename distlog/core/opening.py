"""Creates, opens and lists topics; imports a Kafka broker's files, and opens topics in Kafka's tiered storage."""

from __future__ import annotations

import dataclasses
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows, whole_number
from distlog.core.commits.commit_log import check_partition_count
from distlog.core.config import TopicConfig
from distlog.core.display import Displayable, Listing, counted, sums_of
from distlog.core.errors import (
    CorruptionError,
    DistlogError,
    InvalidConfigError,
    InvalidTopicError,
    ReadOnlyTopicError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
    TopicExistsError,
    TopicIdWarning,
    TopicNotFoundError,
)
from distlog.core.kafka.adopt import AdoptedTopic, Replicas, adopt_topic, by_topic
from distlog.core.kafka.log_dir import (
    ClusterMetadata,
    ImportedSettings,
    LogDir,
    StoredTransactions,
    imported_settings,
    merged_transactions,
    newest_metadata,
    read_log_dir,
)
from distlog.core.kafka.partition_folder import PartitionName, locked_log_dir
from distlog.core.maintain.executor import Executor
from distlog.core.maintain.verify import VerifyReport
from distlog.core.segments.segment_reader import TopicHandle, topic_log
from distlog.core.storage.calls import in_order, in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.tiered.tiered_storage import RemoteTopic, TieredStorage, find_topic, load
from distlog.core.times import Time, to_ms
from distlog.core.topic import Topic

StorageOptions = Mapping[str, Any]
"""Options of the storage, as fsspec or pyarrow name them."""
_OPENS_AT_ONCE = 8  # topics that are opened at the same time
#: If an address has no topic: how many folders in it are searched for topics, and how many topics the error names.
_MAX_SEARCHED, _MAX_NAMED = 20, 5


def create(
    url: str,
    partitions: int = 1,
    config: Mapping[str, object] | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Create a topic.

    Args:
        url: Any fsspec URL or local path; its last part is the topic's name.
        partitions: The number of partitions.
        config: Settings by Kafka's names (`LogConfig`); see `TopicConfig`.
        storage_options: Options of the storage, as fsspec or pyarrow name them.

    Returns:
        The new topic.

    Raises:
        TopicExistsError: The topic exists.
        InvalidTopicError: The name breaks Kafka's rule, or the folder holds topics or lies in a topic.
        InvalidConfigError: A setting or the number of partitions is not valid.
        StorageError: The storage does not refuse to overwrite a file when asked to, so it cannot hold a log.

    Examples:
        >>> pages = distlog.create("logs/pages", 4, {"retention.ms": -1})
        >>> pages.partitions
        4
    """
    partitions = whole_number("partitions", partitions)
    check_partition_count(partitions)
    storage = Storage(url, storage_options)
    return make_topic(storage, partitions, TopicConfig.parse(config or {}), absent_ms=_check_location(storage))


def make_topic(storage: Storage, partitions: int, config: TopicConfig, *, absent_ms: int | None = None) -> Topic:
    """Create a topic without a check of its location; `absent_ms` is as in `CommitLog.create`."""
    log = topic_log(storage)
    snapshot = log.create(partitions, config, absent_ms=absent_ms)
    return Topic(TopicHandle.of(storage, snapshot.name, log), snapshot)


def _check_location(storage: Storage) -> int | None:
    """Raise InvalidTopicError if the folder holds topics, or lies in a topic: their files would be mixed.

    Returns the store's time before the listing if it shows no commits, so that `create` need not list again; or None.
    """
    absent_ms = storage.replied_ms()  # the store's time in its last reply
    listings: tuple[Callable[[Storage], list[str] | None], ...] = (_folders_in, _topics_above)
    # an object store gets the requests of both at once
    run_all = map if storage.is_local else in_parallel
    folders, above = run_all(lambda listing: listing(storage), listings)
    if folders is None or paths.COMMITS_DIR in folders:
        return None  # `create` reports a failing storage, and a topic in the folder
    names = _topics_among(storage, folders) or _topics_below(storage, folders)
    if names:
        text = f"this folder holds topics, so it cannot be a topic: create one in it, as {storage.url}/NAME"
        raise InvalidTopicError(text, topics=_names_text(names))
    if above:
        raise InvalidTopicError("this folder lies in a topic: choose a folder next to the topic", topic=above[0])
    return absent_ms


def check_root(root: Storage) -> None:
    """Raise TopicNotFoundError if the folder is a topic itself; returns if the storage cannot list."""
    # unlike `_has_commits`, suppress only StorageError: wrong options of the storage must raise
    with suppress(StorageError):
        if next(iter(root.list_after(paths.COMMITS_DIR)), None) and _is_topic(root):
            text = f"this is a topic, not a folder of topics: use the folder above, {root.url.rpartition('/')[0]}"
            raise TopicNotFoundError(text, root=root.url)


def _folders_in(storage: Storage) -> list[str] | None:
    with suppress(DistlogError, OSError):
        return storage.list_folders()
    return None


def _topics_above(storage: Storage) -> list[str]:
    above = list(storage.parents())
    has_commits = map(_has_commits, above) if storage.is_local else in_parallel(_has_commits, above)
    candidates = [folder for folder, has_any in zip(above, has_commits, strict=True) if has_any]
    return [folder.url for folder in candidates if _is_topic(folder)]


def _has_commits(folder: Storage) -> bool:
    """True if the folder has commits; False also if the storage cannot list."""
    with suppress(DistlogError, OSError):
        return next(iter(folder.list_after(paths.COMMITS_DIR)), None) is not None
    return False


def open(
    url: str, version: int | None = None, timestamp: Time | None = None, storage_options: StorageOptions | None = None
) -> Topic:
    """Open a topic at its newest version, or read-only at an older one.

    Args:
        url: Any fsspec URL or local path of a topic's folder.
        version: The version to read; not together with `timestamp`.
        timestamp: The time whose newest version to read.
        storage_options: Options of the storage, as fsspec or pyarrow name them.

    Returns:
        The topic; read-only for a version or a time.

    Raises:
        TopicNotFoundError: The topic does not exist; if `url` is a folder of topics, the error names some.
        OffsetOutOfRangeError: The topic does not have the version, or did not exist at the time.
        InvalidConfigError: The version is not a number.

    Examples:
        >>> distlog.open("clicks").version
        1
        >>> distlog.open("clicks", version=0).end_offsets()
        {0: 0, 1: 0}
    """
    storage = Storage(url, storage_options)
    with naming_topics(storage):
        return _open(storage, version, timestamp)


@contextmanager
def naming_topics(storage: Storage) -> Iterator[None]:
    """Replace a TopicNotFoundError from the block if the address has topics: name them in the error."""
    try:
        yield
    except TopicNotFoundError as error:
        names = _topics_among(storage, _folders_in(storage) or ())
        if not names:
            raise
        text = f"this is not a topic, but a folder of topics: add the name of one: {_names_text(names)}"
        raise TopicNotFoundError(text, **error.details) from None


def _topics_among(storage: Storage, folders: Iterable[str]) -> list[str]:
    names = sorted(name for name in folders if paths.is_topic_name(paths.last_part(name)))[:_MAX_SEARCHED]
    are_topics = in_parallel(_is_topic, map(storage.child, names))
    return [name for name, is_topic in zip(names, are_topics, strict=True) if is_topic]


def _topics_below(storage: Storage, folders: Sequence[str]) -> list[str]:
    searched = sorted(folders)[:_MAX_SEARCHED]
    inner = in_parallel(lambda name: _folders_in(storage.child(name)) or (), searched)
    return _topics_among(
        storage, [f"{name}/{topic}" for name, names in zip(searched, inner, strict=True) for topic in names]
    )


def _names_text(names: Sequence[str]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", ..." if len(names) > _MAX_NAMED else "")


def _is_topic(storage: Storage) -> bool:
    """True if the topic exists, and is not dropped; False also if its commits are damaged."""
    try:
        topic_log(storage).load()
    except (DistlogError, OSError):
        return False
    return True


def _open(storage: Storage, version: int | None = None, timestamp: Time | None = None) -> Topic:
    if version is not None and timestamp is not None:
        raise ValueError("pass either version or timestamp to open a topic, not both")
    number = None if version is None else whole_number("version", version)
    timestamp_ms = None if timestamp is None else to_ms(timestamp)
    log = topic_log(storage)
    snapshot = log.load(version=number, timestamp_ms=timestamp_ms)
    is_pinned = version is not None or timestamp is not None
    return Topic(TopicHandle.of(storage, snapshot.name, log), snapshot, pinned=is_pinned)


def open_or_create(
    url: str,
    partitions: int | None = None,
    config: Mapping[str, object] | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Open a topic, or create it if it does not exist; processes may do so concurrently.

    Args:
        url: Any fsspec URL or local path.
        partitions: Partitions of a new topic, default 1. An existing topic must have this number.
        config: The settings of a new topic, by Kafka's names.
        storage_options: Options of the storage.

    Returns:
        The topic.

    Raises:
        InvalidConfigError: The topic has another number of partitions than `partitions`.
        DistlogError: As `create` and `open` raise.

    Examples:
        >>> distlog.open_or_create("clicks").end_offsets()
        {0: 2, 1: 1}
    """
    storage = Storage(url, storage_options)
    try:
        topic = _open(storage)
    except TopicNotFoundError:
        with suppress(TopicExistsError):
            return create(url, 1 if partitions is None else partitions, config, storage_options)
        topic = _open(storage)
    if partitions not in (None, topic.partitions):
        text = "the topic exists with another number of partitions: pass this number, or none"
        raise InvalidConfigError(text, partitions=topic.partitions, requested=partitions)
    return topic


def topics(
    root: str, storage_options: StorageOptions | None = None, errors: MutableMapping[str, DistlogError] | None = None
) -> list[Topic]:
    """List the topics directly in a folder, by name, without dropped topics.

    A copy of another topic's folder, with the same id, causes a TopicIdWarning.

    Args:
        root: Any fsspec URL or local path of a folder.
        storage_options: Options of the storage.
        errors: Gets the error of each topic that cannot be opened, by name. Without it the first error is raised.

    Returns:
        The open topics.

    Raises:
        DistlogError: A topic cannot be opened, with its name as the detail `topic`.
        StorageError: The object store does not answer; also with `errors`.

    Examples:
        >>> [topic.name for topic in distlog.topics(".")]
        ['clicks']
    """
    folder = Storage(root, storage_options)

    def open_topic(name: str) -> Topic | None:
        try:
            storage = Storage(folder.child(name).url, storage_options)
            log = topic_log(storage)
            snapshot = log.load(by_listing=True)
        except TopicNotFoundError:
            return None
        except DistlogError as error:
            error.details.setdefault("topic", name)
            # a store that has not answered for a minute will not answer for the next topic either
            is_of_store = isinstance(error, StorageError) and not isinstance(error, StorageRefusedError)
            if errors is None or (is_of_store and not folder.is_local):
                raise
            errors[name] = error
            return None
        return Topic(TopicHandle.of(storage, snapshot.name, log), snapshot)

    folders = set(folder.list_folders()) - {paths.COMMITS_DIR}
    # folders with a valid name are opened without a check: that takes no more requests, and most are topics
    topic_names = {name for name in folders if paths.is_topic_name(name)}
    # a folder with another name may hold a topic, too
    names = sorted(topic_names.union(_topics_in(folder, folders - topic_names)))
    topics = [
        topic
        for topic in in_order((partial(open_topic, name) for name in names), _OPENS_AT_ONCE)
        if topic is not None
    ]
    for name, text in copies_in(topics).items():
        warnings.warn(f"{name} {text}", TopicIdWarning, stacklevel=2)
    return topics


def copies_in(topics: Iterable[Topic]) -> dict[str, str]:
    """Return, by name, a text about each topic that is a copy of another topic of the root, with the same id.

    A topic whose folder has the name that it was created with is the original, and is left out.
    """
    by_id = dict[str, list[Topic]]()
    for topic in topics:
        by_id.setdefault(topic.snapshot.topic_id, []).append(topic)
    return {
        topic.name: copy_text(next(other.name for other in same_id if other is not topic))
        for same_id in by_id.values()
        if len(same_id) > 1
        for topic in same_id
        if topic.name != topic.snapshot.name
    }


def copy_text(name: str) -> str:
    return (
        f"has the topic id of {name}, since one is a copy of the other: 'distlog alter URL --new-id' gives the "
        "copy its own id"
    )


def find_topics(root: Storage) -> list[Storage]:
    return [root.child(name) for name in _topics_in(root, sorted(root.list_folders()))]


def _topics_in(root: Storage, names: Iterable[str]) -> list[str]:
    """Return the folders among `names` that are topics; skips `_commits`, which `root` has if it is a topic."""

    def folders_in(name: str) -> list[str]:
        try:
            return root.list_folders(name)
        except StorageDeniedError:
            if paths.is_topic_name(name):
                raise
            # a folder like `lost+found`, which only the administrator may read
            return []

    candidates = [name for name in names if name != paths.COMMITS_DIR]
    inside = in_parallel(folders_in, candidates)
    return [
        name for name, folders in zip(candidates, inside, strict=True) if f"{name}/{paths.COMMITS_DIR}" in folders
    ]


#: The columns of partitions that are summed up for their topic.
_SUMMED = "records", "segments", "bytes"
_TOPIC_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("result", pa.string()),
        *((name, pa.int64()) for name in ("partitions", *_SUMMED)),
        ("settings", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class AdoptReport(Displayable):
    """The topics that `adopt` imported, or would import with `dry_run`, with notes on cut and rebuilt parts.

    `topics` has the topics of this and of an earlier run, by name, and `left_out` why folders were skipped.
    """

    adopted: tuple[AdoptedTopic, ...]
    topics: Mapping[str, Topic]
    left_out: Mapping[str, str]
    dry_run: bool = False

    @property
    def topic(self) -> Topic:
        """The topic, if it is the only one; raises the error if the topic was not adopted."""
        if len(self.adopted) != 1:
            raise InvalidTopicError("several topics were adopted, or none: use `topics`", topics=len(self.adopted))
        if error := self.adopted[0].error:
            raise error
        if self.dry_run and not self.topics:
            raise InvalidTopicError("a dry run creates no topic: adopt without dry_run", topic=self.adopted[0].name)
        return self.topics[self.adopted[0].name]

    @property
    def ok(self) -> bool:
        """True if every topic was adopted."""
        return all(topic.error is None for topic in self.adopted)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line for each part that was cut, left out or rebuilt, and for each topic that was not adopted."""
        folders = [f"{folder}: {reason}; it was left out" for folder, reason in self.left_out.items()]
        topics = [f"{topic.name}: {note}" for topic in self.adopted for note in topic.notes]
        present = [f"{topic.name}: was adopted before" for topic in self.adopted if topic.existed]
        errors = [f"{topic.name}: not adopted: {topic.error}" for topic in self.adopted if topic.error]
        return (*folders, *topics, *present, *errors)

    def __str__(self) -> str:
        adopted = [topic for topic in self.adopted if topic.result in ("adopted", "extended")]
        verb = "would adopt" if self.dry_run else "adopted"
        size = sum(partition.log_bytes for topic in adopted for partition in topic.partitions)
        failed = f"; {counted(sum(bool(topic.error) for topic in self.adopted), 'topic')} failed"
        summary = f"{verb} {counted(len(adopted), 'topic')}, {counted(size, 'byte')}{'' if self.ok else failed}"
        return "\n".join([summary, *self.notes])

    def to_table(self) -> pa.Table:
        """Return a row per topic, with the settings that were taken from a broker."""
        rows = [
            {**topic, "settings": " ".join(f"{name}={value}" for name, value in topic["settings"].items())}
            for topic in self._topics()
        ]
        return table_of_rows(rows, _TOPIC_SCHEMA)

    def to_dict(self) -> dict[str, Any]:
        """Return each topic with its address, its notes and its row of the table; and a row per partition."""
        rows = [
            {"topic": topic.name, "partition": number, **row}
            for topic in self.adopted
            for number, row in sorted(_partition_rows(topic, dry_run=self.dry_run).items())
        ]
        return {
            "ok": self.ok,
            "dry_run": self.dry_run,
            "topics": self._topics(),
            "partitions": rows,
            "notes": list(self.notes),
        }

    def _topics(self) -> list[dict[str, Any]]:
        rows_of_topics = [(topic, [*_partition_rows(topic, dry_run=self.dry_run).values()]) for topic in self.adopted]
        return [
            {
                "topic": topic.name,
                "url": topic.url,
                "result": topic.result,
                "error": str(topic.error) if topic.error else None,
                "partitions": len(rows),
                **sums_of(rows, *_SUMMED),
                "settings": dict(topic.settings),
                "notes": list(topic.notes),
            }
            for topic, rows in rows_of_topics
        ]


def _partition_rows(adopted: AdoptedTopic, *, dry_run: bool) -> dict[int, dict[str, int]]:
    """Return the numbers of each partition of the topic; in a dry run with the segments that it would get."""
    rows = {
        number: {
            "log_start_offset": state.log_start_offset,
            "log_end_offset": state.log_end_offset,
            "records": sum(segment.record_count for segment in state.segments),
            "segments": len(state.segments),
            "bytes": sum(segment.log_bytes for segment in state.segments),
        }
        for number, state in enumerate(adopted.states)
    }
    new_partitions = adopted.partitions if dry_run else ()
    for partition in new_partitions:
        row = rows.get(partition.name.partition, dict.fromkeys(("log_start_offset", "log_end_offset", *_SUMMED), 0))
        rows[partition.name.partition] = {
            # a partition that ends at offset 0 has no records yet, and starts where the import starts
            "log_start_offset": row["log_start_offset"] if row["log_end_offset"] else partition.log_start_offset,
            "log_end_offset": partition.log_end_offset,
            "records": row["records"] + sum(segment.info.record_count for segment in partition.segments),
            "segments": row["segments"] + len(partition.segments),
            "bytes": row["bytes"] + partition.log_bytes,
        }
    return rows


def adopt(
    directory: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    url: str | None = None,
    *,
    topics: Iterable[str] | None = None,
    config: Mapping[str, object] | None = None,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> AdoptReport:
    """Import topics from stopped brokers' log directories, or from folders of partitions.

    Without `url` the import makes each topic's folder in the log directory, with hard links to the broker's files;
    nothing is copied, and the broker's folders do not change. With `url` it copies the files: from folders of
    partitions to the topic `url`, from log directories to folders with the topics' names in `url`. Directories and
    `url` may be on object storage, with the same `storage_options`; files are then copied within the store.

    Several directories (the disks of a broker, or the brokers of a cluster) need a `url`. Each topic is made from all
    of the directories, and from the most complete replica of each partition: the latest leader epoch, then the
    longest log. A torn write at the end of a log is cut, as a broker would cut it. A topic with other damage is not
    adopted. The report names the cuts and the errors. Each topic is one commit. After a crash, call `adopt` again to
    continue. Topics of an earlier run get new partitions and later records. A topic that has got other records since
    does not change, and has an error in the report. If no `retention.ms` is set, the topic keeps all records.

    Args:
        directory: A log directory or a partition's folder; or several, not mixed.
        url: The topic, or the folder of topics, to copy to.
        topics: Names of the topics to adopt; default all.
        config: Settings that override the cluster's own metadata (KRaft).
        dry_run: Only report.
        storage_options: Options of the storage of `directory` and `url`.

    Returns:
        The report.

    Raises:
        InvalidTopicError: A directory is not a broker's, or lacks a topic.
        InvalidConfigError: A setting is not valid.
        StorageError: A broker may be running.
        DistlogError: The reason why the topic of a partition's folder cannot be adopted.

    Examples:
        >>> report = topic.export("kafka-logs")
        >>> distlog.adopt("kafka-logs", "adopted").topics["clicks"].end_offsets()
        {0: 2, 1: 1}
    """
    overrides = config or {}
    TopicConfig.parse(overrides)
    log_dirs, is_folder = _read(directory, storage_options)
    if len(log_dirs) > 1 and url is None:
        text = "several directories cannot be adopted by hard links: pass `url`, the address to copy the topics to"
        raise InvalidTopicError(text, directories=len(log_dirs))
    transactions = merged_transactions([log_dir.stored_transactions for log_dir in log_dirs])
    clusters = newest_metadata(log_dir.metadata for log_dir in log_dirs if log_dir.metadata is not None)
    replicas_by_topic = by_topic(log_dirs, _requested_partitions(log_dirs, topics))
    if is_folder and len(replicas_by_topic) > 1:
        raise InvalidTopicError(
            "partition folders of several topics cannot be adopted together: pass their log directory, or the "
            "folders of one topic",
            topics=_names_text(sorted(replicas_by_topic)),
        )
    root = Storage(url, storage_options) if url else log_dirs[0].storage
    reports, topics_by_name = list[AdoptedTopic](), dict[str, Topic]()
    with ExitStack() as stack:
        for storage in {log_dir.storage.url: log_dir.storage for log_dir in log_dirs}.values():
            stack.enter_context(locked_log_dir(storage))
        for name, replicas in replicas_by_topic.items():
            target = root if url and is_folder else root.child(name)
            try:
                settings = _settings(name, replicas, clusters, overrides)
                report, topic = _adopt(replicas, target, settings, transactions, by_links=not url, dry_run=dry_run)
                reports.append(report)
                if topic:
                    topics_by_name[report.name] = topic
            except DistlogError as error:
                if is_folder:
                    raise
                reports.append(AdoptedTopic(name, target.url, error=error))
    return AdoptReport(tuple(reports), topics_by_name, {} if is_folder else _skipped_folders(log_dirs), dry_run)


def _read(
    directory: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None
) -> tuple[list[LogDir], bool]:
    directories = [directory] if isinstance(directory, str | os.PathLike) else list(directory)
    log_dirs = [read_log_dir(url, options) for url in directories]
    if not log_dirs:
        raise InvalidTopicError("there is no directory: pass one")
    # `read_log_dir` returns a partition only for the folder of a partition
    are_folders = [partition is not None for _, partition in log_dirs]
    if any(are_folders) and not all(are_folders):
        folders = ", ".join(log_dir.storage.url for log_dir, partition in log_dirs if partition)
        text = "some directories are folders of partitions, the others log directories: pass only one kind"
        raise InvalidTopicError(text, partition_folders=folders)
    if not any(log_dir.partitions for log_dir, _ in log_dirs):
        text = "the directory has the cluster's metadata, and no topic: also pass the log directories of the brokers"
        raise InvalidTopicError(text, directory=log_dirs[0][0].storage.url)
    distinct = {(log_dir.storage.url, partition): log_dir for log_dir, partition in log_dirs}
    return list(distinct.values()), are_folders[0]


def _skipped_folders(log_dirs: Sequence[LogDir]) -> dict[str, str]:
    return {
        folder if len(log_dirs) == 1 else f"{log_dir.storage.url}/{folder}": reason
        for log_dir in log_dirs
        for folder, reason in log_dir.left_out.items()
    }


def _requested_partitions(log_dirs: Sequence[LogDir], topics: Iterable[str] | None) -> list[PartitionName]:
    names = [name for log_dir in log_dirs for name in log_dir.partitions]
    if topics is None:
        return names
    requested = set(topics)
    missing = requested - {name.topic for name in names}
    if missing:
        raise InvalidTopicError("the log directory has no partition of the topic: check its name", topic=min(missing))
    return [name for name in names if name.topic in requested]


def _settings(
    topic: str, replicas: Replicas, clusters: Sequence[ClusterMetadata], overrides: Mapping[str, object]
) -> ImportedSettings:
    """Return the settings by the topic's id in its folders, since an earlier topic may have had the same name."""
    topic_ids = set[uuid.UUID]()
    # an id is only needed to find a topic in the metadata of a cluster
    searched: Replicas = replicas if clusters else {}
    for name, log_dirs in searched.items():
        for log_dir in log_dirs:
            # a damaged replica is skipped: `_adopt` raises its error if there is no other
            with suppress(CorruptionError):
                if (topic_id := log_dir.folder(name).topic_id()) is not None:
                    topic_ids.add(topic_id)
    return imported_settings(clusters, topic, topic_ids, overrides)


def _adopt(
    replicas: Replicas,
    target: Storage,
    settings: ImportedSettings,
    transactions: StoredTransactions,
    *,
    by_links: bool,
    dry_run: bool,
) -> tuple[AdoptedTopic, Topic | None]:
    adopted, log, snapshot = adopt_topic(
        replicas, target, settings.config, transactions, by_links=by_links, dry_run=dry_run
    )
    if not adopted.existed:
        notes = (*adopted.notes, *settings.notes)
        adopted = dataclasses.replace(adopted, settings=settings.values, notes=notes)
    if snapshot is None:
        return adopted, None
    topic = Topic(TopicHandle.of(target, snapshot.name, log), snapshot)
    # with the active segments that an existing topic may have
    return dataclasses.replace(adopted, states=tuple(topic.live_snapshot.partitions)), topic


_PIN_REASON = "only a Kafka broker can add to tiered storage: refresh() reads the segments that were added"


class TieredTopic(Topic):
    """A topic in Kafka's tiered storage, at its last `refresh`. Unsupported methods raise ReadOnlyTopicError."""

    def __init__(self, topic: RemoteTopic) -> None:
        storage = TieredStorage(topic)
        super().__init__(TopicHandle.of(storage, topic.name), load(storage), pinned=True, pin_reason=_PIN_REASON)

    @property
    def _bucket(self) -> TieredStorage:
        assert isinstance(self.storage, TieredStorage)
        return self.storage

    def refresh(self) -> TieredTopic:
        """Read the segments that were uploaded or deleted since; reads only new manifests."""
        self.advance(load(self._bucket, self.version + 1))
        return self

    def history(self, limit: int | None = None) -> Listing:
        """Raise ReadOnlyTopicError: a bucket has no commits."""
        self._refuse("history")

    def groups(self) -> Listing:
        """Raise ReadOnlyTopicError: Kafka's groups are in its brokers."""
        self._refuse("groups")

    def verify(self, *, executor: Executor | None = None) -> VerifyReport:
        """Raise ReadOnlyTopicError: a bucket has no commits with checksums to compare. A scan checks each batch."""
        self._refuse("verify")

    def _refuse(self, feature: str) -> NoReturn:
        raise ReadOnlyTopicError(f"a topic in Kafka's tiered storage has no {feature}", url=self.url)

    def __reduce__(self) -> tuple[Any, ...]:
        return TieredTopic, (self._bucket.topic,)


def open_tiered(
    url: str, topic: str, topic_id: str | None = None, storage_options: Mapping[str, Any] | None = None
) -> TieredTopic:
    """Open a topic of Kafka's tiered storage (KIP-405, Aiven's plugin) in a bucket, read-only and without a broker.

    Records that the brokers have not uploaded, in the active segments, are missing.

    Args:
        url: The bucket, with the plugin's `key.prefix`.
        topic: The name of the topic.
        topic_id: The id, if several topics had that name.
        storage_options: Options of the storage client.

    Returns:
        The topic. Methods that it does not support raise ReadOnlyTopicError.

    Raises:
        TopicNotFoundError: The topic is not in the bucket.
        UnsupportedVersionError: Segments are encrypted.
        CorruptMetadataError: A manifest is damaged, or offsets are missing.

    Examples:
        >>> distlog.open_tiered("tiered", "clicks")
        Traceback (most recent call last):
        distlog.core.errors.TopicNotFoundError: ...
    """
    return TieredTopic(find_topic(url, topic, topic_id, storage_options))

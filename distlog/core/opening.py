"""Creates a topic, opens one that exists, changes it as a whole, or makes it of a Kafka broker's files."""

from __future__ import annotations

import dataclasses
import os
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from distlog.core import paths
from distlog.core.arrays import table_of_rows
from distlog.core.commits.actions import MAX_PARTITIONS
from distlog.core.config import TopicConfig
from distlog.core.display import Shown, counted
from distlog.core.errors import (
    CorruptionError,
    DistlogError,
    InvalidConfigError,
    InvalidTopicError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
    TopicExistsError,
    TopicIdWarning,
    TopicNotFoundError,
)
from distlog.core.integers import whole_number
from distlog.core.kafka.adopt import AdoptedTopic, Replicas, adopt_topic, by_topic
from distlog.core.kafka.cluster_metadata import (
    ClusterMetadata,
    ImportedSettings,
    most_complete,
    taken_settings,
)
from distlog.core.kafka.log_dir import LeftStates, LogDir, joined_states, read_log_dir
from distlog.core.kafka.partition_folder import PartitionName, without_broker
from distlog.core.segments.topic_handle import TopicHandle, topic_log
from distlog.core.storage.parallel import in_order, in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.times import Time, to_ms
from distlog.core.topic import Topic
from distlog.core.topic_id import NamedId, copies

StorageOptions = Mapping[str, Any]
#: How many topics are opened at the same time.
_OPENED = 8
#: How many folders are looked at for topics where there is none, and how many of these are named.
_LOOKED_AT, _NAMED = 20, 5


def create(
    url: str,
    partitions: int = 1,
    config: Mapping[str, object] | None = None,
    storage_options: StorageOptions | None = None,
) -> Topic:
    """Create a topic at `url`, any fsspec URL or local path, whose last part is the topic's name.

    Raises TopicExistsError, InvalidTopicError, also for a folder that holds topics or lies in one,
    InvalidConfigError, or StorageError when the storage cannot hold a log (it must refuse
    to overwrite when asked to).
    """
    partitions = whole_number("partitions", partitions)
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise InvalidConfigError(f"a topic has 1 to {MAX_PARTITIONS} partitions", partitions=partitions)
    storage = Storage(url, storage_options)
    settings = TopicConfig.parse(config or {})
    return make_topic(storage, partitions, settings, absent_ms=_check_place(storage))


def make_topic(storage: Storage, partitions: int, config: TopicConfig, *, absent_ms: int | None = None) -> Topic:
    """Create a topic in `storage`, without a look at the folders around."""
    log = topic_log(storage)
    snapshot = log.create(partitions, config, absent_ms=absent_ms)
    return Topic(TopicHandle.of(storage, snapshot.name, log), snapshot)


def _check_place(storage: Storage) -> int | None:
    """Raise InvalidTopicError if the folder holds topics, or lies in a topic: the files of both would be mixed.

    Returns the store's time before a listing that showed no commits, which need not be listed again; None if it
    showed some, or the storage cannot list.
    """
    before_ms = storage.replied_ms()
    looks: tuple[Callable[[Storage], list[str] | None], ...] = (_folders_in, _topics_above)
    folders, above = (
        [look(storage) for look in looks] if storage.is_local else in_parallel(lambda look: look(storage), looks)
    )
    if folders is None or paths.COMMITS_DIR in folders:
        return None
    if folders and (names := _open_names(storage, folders) or _names_in(storage, folders)):
        text = f"this folder holds topics, so it is none: create a topic in it, as in {storage.url}/NAME"
        raise InvalidTopicError(text, topics=_listed(names))
    if above:
        raise InvalidTopicError("this folder lies in a topic: choose one beside the topic", topic=above[0])
    return before_ms


def check_root(root: Storage) -> None:
    """Raise TopicNotFoundError if the folder is a topic itself; not if the storage cannot list."""
    with suppress(StorageError):
        if next(iter(root.list_after(paths.COMMITS_DIR)), None) and _is_open(root):
            text = f"this is a topic, not a folder of topics: give the one above it, {root.url.rpartition('/')[0]}"
            raise TopicNotFoundError(text, root=root.url)


def _folders_in(storage: Storage) -> list[str] | None:
    with suppress(DistlogError, OSError):
        return storage.list_folders()
    return None


def _topics_above(storage: Storage) -> list[str]:
    above = list(storage.parents())
    begun = map(_has_commits, above) if storage.is_local else in_parallel(_has_commits, above)
    return [each.url for each, has_commits in zip(above, begun, strict=True) if has_commits and _is_open(each)]


def _has_commits(folder: Storage) -> bool:
    """False also if the storage cannot list."""
    with suppress(DistlogError, OSError):
        return next(iter(folder.list_after(paths.COMMITS_DIR)), None) is not None
    return False


def open(
    url: str, version: int | None = None, timestamp: Time | None = None, storage_options: StorageOptions | None = None
) -> Topic:
    """Open the topic at `url`: its newest version, or read-only at a version or a time.

    Raises TopicNotFoundError if there is none, and names topics below `url`, OffsetOutOfRangeError if it has no such
    version, or none yet at that time, InvalidConfigError for a version that is no number.
    """
    with naming_topics(storage := Storage(url, storage_options)):
        return _open(storage, version, timestamp)


@contextmanager
def naming_topics(storage: Storage) -> Iterator[None]:
    """A TopicNotFoundError that is raised inside names the topics below the address, if there are some."""
    try:
        yield
    except TopicNotFoundError as error:
        names = _open_names(storage, _folders_in(storage) or ())
        if not names:
            raise
        text = f"this is no topic, but a folder of topics: add the name of one: {_listed(names)}"
        raise TopicNotFoundError(text, **error.details) from None


def _open_names(storage: Storage, folders: Iterable[str]) -> list[str]:
    names = sorted(name for name in folders if paths.is_topic_name(paths.last_part(name)))[:_LOOKED_AT]
    are_open = in_parallel(_is_open, map(storage.child, names))
    return [name for name, is_open in zip(names, are_open, strict=True) if is_open]


def _names_in(storage: Storage, folders: Sequence[str]) -> list[str]:
    looked_at = sorted(folders)[:_LOOKED_AT]
    inner = in_parallel(lambda name: _folders_in(storage.child(name)) or (), looked_at)
    return _open_names(
        storage, [f"{name}/{each}" for name, found in zip(looked_at, inner, strict=True) for each in found]
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")


def _is_open(storage: Storage) -> bool:
    """False also if the commits are damaged."""
    try:
        topic_log(storage).load()
    except (DistlogError, OSError):
        return False
    return True


def _open(storage: Storage, version: int | None = None, timestamp: Time | None = None) -> Topic:
    if version is not None and timestamp is not None:
        raise ValueError("give a version or a timestamp to open a topic at, not both")
    number = None if version is None else whole_number("version", version)
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
    `partitions`, and as `create` and `open` do.
    """
    storage = Storage(url, storage_options)
    try:
        topic = _open(storage)
    except TopicNotFoundError:
        with suppress(TopicExistsError):
            return create(url, 1 if partitions is None else partitions, config, storage_options)
        topic = _open(storage)
    if partitions not in (None, topic.partitions):
        raise InvalidConfigError(
            "the topic exists with another number of partitions: do not give one, or give this",
            partitions=topic.partitions,
            requested=partitions,
        )
    return topic


def topics(
    root: str, storage_options: StorageOptions | None = None, errors: MutableMapping[str, DistlogError] | None = None
) -> list[Topic]:
    """The topics right below the folder `root`, opened, by name; dropped topics are left out.

    The error of a topic that cannot be opened has its name as the detail `topic`. It is raised; or, with a dict for
    `errors`, put there by that name, and the other topics are opened. An object store that does not answer any more
    is no error of one topic, so its error is raised in any case. Gives a TopicIdWarning for a topic that is a copy of
    another one's folder, and has its id.
    """
    folder = Storage(root, storage_options)

    def opened(name: str) -> Topic | None:
        try:
            storage = Storage(folder.child(name).url, storage_options)
            log = topic_log(storage)
            snapshot = log.load(few=True)
        except TopicNotFoundError:
            return None
        except DistlogError as error:
            error.details.setdefault("topic", name)
            # a store that gave no answer for a minute would not give one for the next topic either
            is_of_store = isinstance(error, StorageError) and not isinstance(error, StorageRefusedError)
            if errors is None or (is_of_store and not folder.is_local):
                raise
            errors[name] = error
            return None
        return Topic(TopicHandle.of(storage, snapshot.name, log), snapshot)

    folders = set(folder.list_folders()) - {paths.COMMITS_DIR}
    # most are small: to open one takes no more requests than to look whether there is one
    usual = {name for name in folders if paths.is_topic_name(name)}
    # but another name may be none that an address can have
    names = sorted(usual.union(_topics_of(folder, folders - usual)))
    found = [topic for topic in in_order((partial(opened, name) for name in names), _OPENED) if topic is not None]
    for name, text in copies_in(found).items():
        warnings.warn(f"{name} {text}", TopicIdWarning, stacklevel=2)
    return found


def copies_in(topics: Iterable[Topic]) -> dict[str, str]:
    """The topics of a root that are copies of others and have their ids, and what to do: see `topic_id.copies`."""
    return copies(NamedId(topic.name, topic.snapshot.topic_id, topic.snapshot.name) for topic in topics)


def find_topics(root: Storage) -> list[Storage]:
    return [root.child(name) for name in _topics_of(root, sorted(root.list_folders()))]


def _topics_of(root: Storage, names: Iterable[str]) -> list[str]:
    """The folders among `names` that hold commits, which the commits of `root` itself do not."""

    def folders_in(name: str) -> list[str]:
        try:
            return root.list_folders(name)
        except StorageDeniedError:
            if paths.is_topic_name(name):
                raise
            # as the `lost+found` of a disk, which is for its administrator
            return []

    others = [name for name in names if name != paths.COMMITS_DIR]
    inside = in_parallel(folders_in, others)
    return [name for name, found in zip(others, inside, strict=True) if f"{name}/{paths.COMMITS_DIR}" in found]


_ROW = "log_start_offset", "log_end_offset", "records", "segments", "bytes"
_COUNTS = "partitions", "records", "segments", "bytes"
_COLUMNS = (
    ("topic", pa.string()),
    ("result", pa.string()),
    *((name, pa.int64()) for name in _COUNTS),
    ("settings", pa.string()),
)


@dataclass(frozen=True, slots=True, repr=False)
class AdoptReport(Shown):
    """The adopted topics, or the ones that `dry_run` would adopt, and the parts that were cut, left out or made anew.

    `topics` are the topics that were made, or that an earlier adoption of the same made, by name. `left_out`
    names the folders that were not taken, and the reasons.
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
        """True if every topic was adopted."""
        return all(each.error is None for each in self.adopted)

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts that were cut, left out or made anew, and the reasons of topics not adopted: a line each."""
        folders = [f"{folder}: {reason}; it was left out" for folder, reason in self.left_out.items()]
        topics = [f"{each.name}: {note}" for each in self.adopted for note in each.notes]
        there = [f"{each.name}: was adopted before" for each in self.adopted if each.was_there]
        errors = [f"{each.name}: not adopted: {each.error}" for each in self.adopted if each.error]
        return (*folders, *topics, *there, *errors)

    def __str__(self) -> str:
        adopted = [each for each in self.adopted if not each.error and (each.partitions or not each.was_there)]
        verb = "would adopt" if self.dry_run else "adopted"
        size = sum(partition.log_bytes for each in adopted for partition in each.partitions)
        failed = f"; {counted(len(self.adopted) - sum(not each.error for each in self.adopted), 'topic')} failed"
        head = f"{verb} {counted(len(adopted), 'topic')}, {counted(size, 'byte')}{'' if self.ok else failed}"
        return "\n".join([head, *self.notes])

    def to_table(self) -> pa.Table:
        """A row per topic, as it is now, or would be. Its settings are the ones that were taken from a broker's."""
        rows = [
            {**topic, "settings": " ".join(f"{name}={value}" for name, value in topic["settings"].items())}
            for topic in self._topics()
        ]
        return table_of_rows(rows, pa.schema(_COLUMNS))

    def to_dict(self) -> dict[str, Any]:
        """Every topic with its address, its notes and the row of the table; and a row per partition."""
        rows = [
            {"topic": each.name, "partition": number, **row}
            for each in self.adopted
            for number, row in self._partitions(each)
        ]
        return {
            "ok": self.ok,
            "dry_run": self.dry_run,
            "topics": self._topics(),
            "partitions": rows,
            "notes": list(self.notes),
        }

    def _topics(self) -> list[dict[str, Any]]:
        return [
            {
                "topic": each.name,
                "url": each.url,
                "result": each.result,
                "error": str(each.error) if each.error else None,
                **_sums([row for _, row in self._partitions(each)]),
                "settings": dict(each.settings),
                "notes": list(each.notes),
            }
            for each in self.adopted
        ]

    def _partitions(self, adopted: AdoptedTopic) -> list[tuple[int, dict[str, int]]]:
        return sorted(_rows_of(adopted, dry_run=self.dry_run).items())


def _sums(rows: Sequence[Mapping[str, int]]) -> dict[str, int]:
    return {"partitions": len(rows), **{name: sum(row[name] for row in rows) for name in _COUNTS[1:]}}


def _rows_of(adopted: AdoptedTopic, *, dry_run: bool) -> dict[int, dict[str, int]]:
    """The topic's part of each partition; in a dry run with the part that it would get."""
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
    for partition in adopted.partitions if dry_run else ():
        before = rows.get(partition.name.partition, dict.fromkeys(_ROW, 0))
        rows[partition.name.partition] = {
            "log_start_offset": before["log_start_offset"]
            if before["log_end_offset"]
            else partition.log_start_offset,
            "log_end_offset": partition.log_end_offset,
            "records": before["records"] + sum(segment.info.record_count for segment in partition.segments),
            "segments": before["segments"] + len(partition.segments),
            "bytes": before["bytes"] + partition.log_bytes,
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
    """Make topics of stopped brokers' log directories, or of partitions' folders in them.

    Without `url` it is done in place: each topic's folder is made in the log directory, and the broker's files get
    second names in it; nothing is copied, and the broker's folders stay as they are. With `url` the files are copied:
    the topic of partitions' folders to `url`, topics of log directories to folders of their names in `url`. Both may
    be on object storage, with the same `storage_options`; there files are copied in place, too.

    Several directories, the disks of a broker or the brokers of a cluster, need a `url`; each topic is made of all of
    them. Of replicas the most complete one is taken: the one of the latest leader epoch, and then the longest.

    `topics` names the topics to adopt; default all. Their settings are taken from the cluster's own metadata if it is
    in one of the directories (KRaft); `config` counts before these. Without `retention.ms` nothing is deleted. A torn
    end is cut, as a broker would cut it, or its topic is not adopted; the report says so. Each topic is made by one
    commit. Call it again after a crash: it goes on. Topics that it has made get new partitions and the records behind
    their own. A topic that has got other records since is left as it is, with an error in the report.

    Raises InvalidTopicError for a directory that is no broker's, StorageError where a broker may be running,
    InvalidConfigError; for a partition's folder also the error for which it cannot be adopted.
    """
    given = config or {}
    TopicConfig.parse(given)
    log_dirs, is_folder = _read(directory, storage_options)
    if len(log_dirs) > 1 and url is None:
        text = "several directories cannot be adopted in place: give the address where the topics will be"
        raise InvalidTopicError(text, directories=len(log_dirs))
    states = joined_states([log_dir.left_states for log_dir in log_dirs])
    clusters = most_complete(log_dir.metadata for log_dir in log_dirs if log_dir.metadata is not None)
    chosen = by_topic(log_dirs, _chosen(log_dirs, topics))
    if is_folder and len(chosen) > 1:
        raise InvalidTopicError("these are folders of several topics: give the log directories", topics=len(chosen))
    root = Storage(url, storage_options) if url else log_dirs[0].storage
    made = dict[str, Topic]()
    with ExitStack() as stack:
        for storage in {log_dir.storage.url: log_dir.storage for log_dir in log_dirs}.values():
            stack.enter_context(without_broker(storage))
        adopted = []
        for name, replicas in chosen.items():
            target = root if url and is_folder else root.child(name)
            settings = partial(_settings, name, replicas, clusters, given)
            try:
                adopted.append(
                    _adopt(replicas, target, settings, states, in_place=not url, dry_run=dry_run, made=made)
                )
            except DistlogError as error:
                if is_folder:
                    raise
                adopted.append(dataclasses.replace(AdoptedTopic(name, target.url), error=error))
    return AdoptReport(tuple(adopted), made, {} if is_folder else _left_out(log_dirs), dry_run)


def _read(
    directory: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], options: Mapping[str, Any] | None
) -> tuple[list[LogDir], bool]:
    directories = [directory] if isinstance(directory, str | os.PathLike) else list(directory)
    log_dirs = [read_log_dir(each, options) for each in directories]
    kinds = {only is not None for _, only in log_dirs}
    if len(kinds) != 1:
        text = "give log directories, or folders of partitions, and not both" if kinds else "there is no directory"
        raise InvalidTopicError(text)
    if not any(log_dir.partitions for log_dir, _ in log_dirs):
        text = "there is only the cluster's own metadata, and no topic: give the log directories of the brokers, too"
        raise InvalidTopicError(text, directory=log_dirs[0][0].storage.url)
    return list({(log_dir.storage.url, only): log_dir for log_dir, only in log_dirs}.values()), kinds.pop()


def _left_out(log_dirs: Sequence[LogDir]) -> dict[str, str]:
    return {
        folder if len(log_dirs) == 1 else f"{log_dir.storage.url}/{folder}": reason
        for log_dir in log_dirs
        for folder, reason in log_dir.left_out.items()
    }


def _chosen(log_dirs: Sequence[LogDir], topics: Iterable[str] | None) -> list[PartitionName]:
    names = [name for log_dir in log_dirs for name in log_dir.partitions]
    if topics is None:
        return names
    chosen = set(topics)
    missing = chosen - {name.topic for name in names}
    if missing:
        raise InvalidTopicError("the log directory has no partition of this topic", topic=min(missing))
    return [name for name in names if name.topic in chosen]


def _settings(
    topic: str, replicas: Replicas, clusters: Sequence[ClusterMetadata], given: Mapping[str, object]
) -> ImportedSettings:
    """The settings for a topic, without those of another topic that had its name before, or has it now."""
    topic_ids = set[uuid.UUID]()
    for name, log_dirs in replicas.items() if clusters else ():
        for log_dir in log_dirs:
            # a damaged replica counts only if there is no other, and then this is an error of the adoption
            with suppress(CorruptionError):
                topic_ids |= {each for each in [log_dir.folder(name).topic_id()] if each is not None}
    return taken_settings(clusters, topic, topic_ids, given)


def _adopt(
    replicas: Replicas,
    target: Storage,
    settings: Callable[[], ImportedSettings],
    states: LeftStates,
    *,
    in_place: bool,
    dry_run: bool,
    made: dict[str, Topic],
) -> AdoptedTopic:
    chosen = settings()
    adopted, log, snapshot = adopt_topic(
        replicas, target, topic_log, chosen.config, states, by_links=in_place, dry_run=dry_run
    )
    if not adopted.was_there:
        adopted = dataclasses.replace(adopted, settings=chosen.values, notes=(*adopted.notes, *chosen.notes))
    if snapshot is not None:
        topic = made[adopted.name] = Topic(TopicHandle.of(target, snapshot.name, log), snapshot)
        adopted = dataclasses.replace(adopted, states=tuple(topic.live_snapshot.partitions))
    return adopted

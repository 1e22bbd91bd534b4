"""Puts the files of adopted partitions where their topic is: as second names of the same files, or as copies.

The broker's own folders stay as they are. So until the commit that makes the topic, nothing has happened to them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.kafka_directory.checkpoint_files import write_epochs
from distlog.core.kafka_directory.directory_names import file_name
from distlog.core.kafka_directory.partition_folder import PartitionFolder
from distlog.core.kafka_directory.source_log import pieces
from distlog.core.kafka_directory.taken_partition import TakenPartition
from distlog.core.kafka_directory.taken_segment import TakenSegment
from distlog.core.paths import LEADER_EPOCHS, SNAPSHOT_SUFFIX
from distlog.core.storage.local.durable_files import failing_as, make_folders
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage

#: A file of up to this size is copied in one piece.
_WHOLE_BYTES = 8 << 20
#: The size of a producer snapshot without a producer.
_NO_PRODUCERS = 10


def placed(topic: Storage, name: str, partitions: Sequence[TakenPartition]) -> list[str]:
    """The files where the partitions' files will be, or are."""
    folders = [paths.partition_dir(name, partition.name.partition) for partition in partitions]
    return [file.name for folder in folders for file in topic.list(folder)]


def place(topic: Storage, name: str, partition: TakenPartition, *, linked: bool) -> None:
    """Put the partition's files into the folder of the topic called `name`, durably.

    `linked` gives the broker's files second names (hard links) where they are right as they are.
    """
    folder = paths.partition_dir(name, partition.name.partition)
    if linked:
        path = topic.local_path(folder)
        with failing_as("make the folder", path):
            make_folders(path)
    in_parallel(lambda each: _place_segment(topic, name, partition.folder, each, linked=linked), partition.segments)
    snapshot = partition.producer_snapshot
    if len(snapshot) > _NO_PRODUCERS:
        topic.put(f"{folder}/{file_name(partition.log_end_offset, SNAPSHOT_SUFFIX)}", snapshot)
    if partition.epochs:
        topic.put(f"{folder}/{LEADER_EPOCHS}", write_epochs(partition.epochs))
    if linked:
        topic.sync(folder)


def _place_segment(
    topic: Storage, name: str, folder: PartitionFolder, segment: TakenSegment, *, linked: bool
) -> None:
    for suffix, source in segment.files.items():
        target = paths.segment_file(name, segment.info.partition, segment.info.stem, suffix)
        if isinstance(source, bytes):
            topic.put(target, source)
        elif linked and (suffix != ".log" or folder.size(source) == segment.info.log_bytes):
            _link(folder.path(source), topic.local_path(target))
        else:
            start, end = (segment.position, segment.end) if suffix == ".log" else (0, folder.size(source))
            _copy(topic, target, folder, source, start, end)


def _link(source: str, target: str) -> None:
    """Give a file a second name; its bytes are synced, since a broker that was killed may not have done it."""
    try:
        # of the file itself: a second name of a link would go where that goes
        os.link(os.path.realpath(source), target)
        with open(target, "rb") as file:
            os.fsync(file.fileno())
    except OSError as error:
        text = f"cannot give a broker's file a second name: {error.strerror}; adopt by copy, to another address"
        raise StorageError(text, file=source) from error


def _copy(topic: Storage, target: str, folder: PartitionFolder, source: str, start: int, end: int) -> None:
    if end <= _WHOLE_BYTES:
        topic.put(target, folder.read(source)[start:end])
        return
    with topic.open_write(target) as writer:
        for piece in pieces(folder.log(source), start, end):
            writer.write_behind(piece)

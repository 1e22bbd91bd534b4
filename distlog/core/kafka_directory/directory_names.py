"""The names in a broker's log directory: folders of partitions, and the files in them (Kafka's `LogFileUtils`).

clicks-0/                                the partition 0 of topic clicks
clicks-0.<32 hex digits>-delete/         a partition that is being deleted; also -future and -stray
clicks-0/00000000000000000137.log        a segment that begins at offset 137; also .index .timeindex .txnindex
clicks-0/00000000000000000137.log.swap   ... on its way; also .cleaned and .deleted
clicks-0/00000000000000000200.snapshot   the producers' state before offset 200
"""

from __future__ import annotations

import re
from typing import NamedTuple

from distlog.core import paths
from distlog.core.config import MAX_LONG
from distlog.core.errors import InvalidTopicError

CLEAN_SHUTDOWN_FILE, BROKER_LOCK_FILE = ".kafka_cleanshutdown", ".lock"
PARTITION_METADATA = "partition.metadata"
#: The topic that holds a KRaft cluster's own metadata: no log of records.
CLUSTER_METADATA = "__cluster_metadata"

_FOLDER = re.compile(r"(?P<topic>.+)-(?P<partition>0|[1-9][0-9]{0,5})")
_FOLDER_IN_STATE = re.compile(r".+-[0-9]+\.[0-9a-f]{32}-(?P<state>delete|future|stray)")
_FILE = re.compile(
    r"(?P<offset>[0-9]{20})(?P<suffix>\.log|\.index|\.timeindex|\.txnindex|\.snapshot)"
    r"(?P<temporary>\.cleaned|\.swap|\.deleted)?"
)


class PartitionName(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class FileName(NamedTuple):
    """A file of a segment, or a producer snapshot; `temporary` is what stands behind its suffix, mostly nothing."""

    offset: int
    suffix: str
    temporary: str


def parse_partition_folder(name: str) -> PartitionName | None:
    """The partition whose folder has this name; None for any other folder.

    A topic's name that breaks Kafka's rule is no error here: then it is no partition's folder.
    """
    match = _FOLDER.fullmatch(name)
    if match is None:
        return None
    try:
        return PartitionName(paths.check_topic_name(match["topic"]), int(match["partition"]))
    except InvalidTopicError:
        return None


def folder_state(name: str) -> str | None:
    """What a broker was doing with a partition's folder: delete, future (a move) or stray; None if nothing."""
    match = _FOLDER_IN_STATE.fullmatch(name)
    return match["state"] if match else None


def parse_file(name: str) -> FileName | None:
    """What a file in a partition's folder is; None if it is neither of a segment nor a producer snapshot."""
    match = _FILE.fullmatch(name)
    if match is None or int(match["offset"]) > MAX_LONG:
        return None
    return FileName(int(match["offset"]), match["suffix"], match["temporary"] or "")


def file_name(offset: int, suffix: str) -> str:
    """The name of a segment's file, or of a producer snapshot."""
    return f"{offset:020d}{suffix}"

"""Builds and parses every file name of a topic, and checks every name that is read from storage.

A topic is a folder; the names in this list are relative to it. A stem is the name of a segment's files without the
suffix: v<version>-<uuid hex> with the version that the writer had read, or Kafka's 20 digits for imported files.

    _commits/00000000000000000007.json                          commit 7
    _commits/00000000000000000100.<sha256>.checkpoint.arrow.zst the state at version 100
    _commits/<version>.<sha256>.of.<full checkpoint>.checkpoint.arrow.zst   the changes since that checkpoint
    _commits/_last_checkpoint                                   the name of the last checkpoint, a hint
    _commits/.removed-files                                     local disk: vacuum and restore lock removed files here
    <topic>-<partition>/<stem>.log .index .timeindex .txnindex .keyindex  a segment
    <topic>-<partition>/<stem>.snapshot                         the states of producers at the segment's start
    <topic>-<partition>/<offset:020d>.snapshot                  these states at the log's start or a broker's log end
    <topic>-<partition>/leader-epoch-checkpoint                 the leader epochs of a broker's log
    _bundles/<stem>.bundle                                      segments of many partitions, all with this stem
    _pending/<stem>.json                                        an append that another writer may commit
    _pending/<stem>.<actions>.append                            the same as an empty file: its name has the actions
    <topic>-<partition>/.lock .flush                            on a local disk, the locks of direct appends
    <topic>-<partition>/.lock.page .flush.page                  copies of values in the locks' files, for readers
    _groups/<topic id>/<group>/00000000000000000003.json        version 3 of a consumer group
    _groups/<topic id>/<group>/<member id>.beat                 the last heartbeat of a member

A root is a folder of topics, which gateways serve to Kafka clients. The root's own `_groups` has the consumer group
of the gateways, with zeros as the topic id; `topics.json` there caches what a listing of the topics returns.

On a local disk, `.<uuid hex>.tmp` in any folder is a file that is being written. `_commits/.probe-<uuid hex>` is
written to test the storage, and deleted at once.
"""

from __future__ import annotations

import re
import uuid
from functools import lru_cache

from distlog.core.errors import InvalidConfigError, InvalidTopicError

COMMITS_DIR = "_commits"
GROUPS_DIR = "_groups"
#: The gateways' index of the root's topics, so that a listing need not read every topic.
TOPIC_INDEX = f"{GROUPS_DIR}/00000000-0000-0000-0000-000000000000/topics.json"
BUNDLES_DIR = "_bundles"
PENDING_DIR = "_pending"
LAST_CHECKPOINT = f"{COMMITS_DIR}/_last_checkpoint"
#: An empty file, which vacuum and restore lock; it is deleted only with the commits.
REMOVED_FILES_LOCK = f"{COMMITS_DIR}/.removed-files"
NEW_STEM_PATTERN = r"v(?P<read_version>[0-9]{20})-[0-9a-f]{32}"
STEM_PATTERN = rf"{NEW_STEM_PATTERN}|[0-9]{{20}}"
LOCK_FILE, FLUSH_FILE = ".lock", ".flush"
PAGE_COPY = ".page"  # the suffix of a copy of the values in a lock's file
SNAPSHOT_SUFFIX, LEADER_EPOCHS = ".snapshot", "leader-epoch-checkpoint"
BUNDLE_SUFFIX = ".bundle"
_CHECKPOINT_SUFFIX = ".checkpoint.arrow.zst"
SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".keyindex", SNAPSHOT_SUFFIX)

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(
    rf"{COMMITS_DIR}/(?P<version>[0-9]{{20}})\.[0-9a-f]{{32}}(?:\.of\.(?P<base>[0-9]{{20}}\.[0-9a-f]{{32}}))?"
    rf"{re.escape(_CHECKPOINT_SUFFIX)}"
)
_TEMPORARY = re.compile(r"\.[0-9a-f]{32}\.tmp|\.probe-[0-9a-f]{32}")
#: A group's name in a path: a group may have any name, so other bytes of its UTF-8 become ~ and two hex digits.
_GROUP = re.compile(r"(?:[a-zA-Z0-9_-]|~[0-9a-f]{2})(?:[a-zA-Z0-9._-]|~[0-9a-f]{2})*")
_ESCAPED_BYTE = re.compile(rb"^\.|[^a-zA-Z0-9._-]")
_ESCAPES = re.compile(rb"~([0-9a-f]{2})")
_HEARTBEAT = re.compile(r"([0-9a-f]{32})\.beat")
#: In characters; also the limit of a group's name in a path.
MAX_TOPIC_NAME_LENGTH = 249
_STEM = re.compile(STEM_PATTERN)
#: The stem of a segment in Kafka's tiered storage: base offset and UUID. No commit has it.
_REMOTE_STEM = re.compile(r"[0-9]{20}-[A-Za-z0-9_-]{22}")
_PARTITION = r"(?P<partition>0|[1-9][0-9]{0,5})"
_PARTITION_DIR = rf"(?P<topic>.+)-{_PARTITION}"
#: A file with the states of producers at an offset. Unlike other files named by 20 digits, it is not of a segment.
_PRODUCER_SNAPSHOT = re.compile(rf"{_PARTITION_DIR}/(?P<offset>[0-9]{{20}}){re.escape(SNAPSHOT_SUFFIX)}")
_LEADER_EPOCHS = re.compile(rf"{_PARTITION_DIR}/{LEADER_EPOCHS}")
#: The part of a name after `<topic>-`. It is faster than `_PARTITION_DIR`, which must search for the topic's end.
_SEGMENT_FILE = re.compile(
    rf"{_PARTITION}/(?P<stem>{_STEM.pattern})"
    rf"(?:{'|'.join(map(re.escape, SEGMENT_SUFFIXES))})"
)
_BUNDLE = re.compile(rf"{BUNDLES_DIR}/(?P<stem>{NEW_STEM_PATTERN}){re.escape(BUNDLE_SUFFIX)}")

_PENDING = re.compile(
    rf"{PENDING_DIR}/(?P<stem>{NEW_STEM_PATTERN})(?:\.json|\.(?P<actions>[A-Za-z0-9_-]{{1,1000}})\.append)"
)


def last_part(name: str) -> str:
    return name.rpartition("/")[2]


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")


def may_be_topic_folder(name: str) -> bool:
    return is_topic_name(name) and name not in (COMMITS_DIR, GROUPS_DIR)


def check_topic_name(name: str) -> str:
    if not is_topic_name(name):
        text = "a topic name must have 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        raise InvalidTopicError(text, topic=repr(name))
    return name


def check_stem(stem: str) -> str:
    """Return `stem` if it is a segment's, and therefore safe in a path; otherwise raise InvalidTopicError."""
    if not _STEM.fullmatch(stem) and not _REMOTE_STEM.fullmatch(stem):
        raise InvalidTopicError(
            "this is not the name of a segment's files: they are named by v, a version of 20 digits, - and a UUID in "
            "hex, or by 20 digits, as in Kafka",
            stem=repr(stem),
        )
    return stem


def new_stem(read_version: int, unique_hex: str) -> str:
    """The stem of a new segment; `read_version` is the version that its writer had read when it started the files."""
    return check_stem(f"v{read_version:020d}-{unique_hex}")


def stem_read_version(stem: str) -> int | None:
    """The version that the segment's writer had read when it started the files; None for files of Kafka."""
    match = _STEM.fullmatch(check_stem(stem))
    return int(match["read_version"]) if match and match["read_version"] else None


def is_own_stem(stem: str) -> bool:
    """True if distlog wrote the segment, False for files imported from Kafka."""
    return stem_read_version(stem) is not None


@lru_cache(1024, typed=True)  # else a call with True would cache "topic-True" for 1, which equals True
def partition_dir(topic: str, partition: int) -> str:
    return f"{check_topic_name(topic)}-{partition}"


def segment_file(topic: str, partition: int, stem: str, suffix: str) -> str:
    if suffix not in SEGMENT_SUFFIXES or partition < 0:
        raise InvalidTopicError("not a segment file", partition=partition, suffix=suffix)
    return f"{partition_dir(topic, partition)}/{check_stem(stem)}{suffix}"


def parse_segment_file(name: str, topic: str) -> tuple[int, str] | None:
    match = _SEGMENT_FILE.fullmatch(name, len(topic) + 1) if name.startswith(f"{topic}-") else None
    # imported segments also have 20 digits as their stem, so the first pattern matches a producer snapshot
    is_of_producers = name.endswith(SNAPSHOT_SUFFIX) and _PRODUCER_SNAPSHOT.fullmatch(name)
    return (int(match["partition"]), match["stem"]) if match and not is_of_producers else None


def parse_producer_snapshot(name: str, topic: str) -> tuple[int, int] | None:
    match = _PRODUCER_SNAPSHOT.fullmatch(name)
    return (int(match["partition"]), int(match["offset"])) if match and match["topic"] == topic else None


def parse_leader_epochs(name: str, topic: str) -> int | None:
    match = _LEADER_EPOCHS.fullmatch(name)
    return int(match["partition"]) if match and match["topic"] == topic else None


def bundle_file(stem: str) -> str:
    """The relative name of a bundle; its parts are segments with the same stem, each of another partition."""
    return f"{BUNDLES_DIR}/{check_stem(stem)}{BUNDLE_SUFFIX}"


def parse_bundle_file(name: str) -> str | None:
    return match["stem"] if (match := _BUNDLE.fullmatch(name)) else None


def pending_file(stem: str, actions: str = "") -> str:
    """The relative name of a pending append; `actions` are in base64, if the name has them."""
    return f"{PENDING_DIR}/{check_stem(stem)}.{f'{actions}.append' if actions else 'json'}"


def parse_pending_file(name: str) -> str | None:
    return match["stem"] if (match := _PENDING.fullmatch(name)) else None


def actions_in_pending_name(name: str) -> str | None:
    return match["actions"] if (match := _PENDING.fullmatch(name)) else None


def commit_file(version: int) -> str:
    return f"{COMMITS_DIR}/{version:020d}.json"


def checkpoint_file(version: int, digest_hex: str, base: str | None = None) -> str:
    """The relative name of a checkpoint of the state at `version`; `digest_hex` is from the file's SHA-256.

    With `base`, the name of a full checkpoint, it is incremental: it has the changes since `base`.
    """
    of = "" if base is None else f".of.{base.removeprefix(f'{COMMITS_DIR}/').removesuffix(_CHECKPOINT_SUFFIX)}"
    return f"{COMMITS_DIR}/{version:020d}.{digest_hex}{of}{_CHECKPOINT_SUFFIX}"


def parse_commit_file(name: str) -> int | None:
    return int(match[1]) if (match := _COMMIT.fullmatch(last_part(name))) else None


def parse_checkpoint_file(name: str) -> int | None:
    return int(match["version"]) if (match := _CHECKPOINT.fullmatch(name)) else None


def base_of_checkpoint(name: str) -> str | None:
    match = _CHECKPOINT.fullmatch(name)
    return f"{COMMITS_DIR}/{match['base']}{_CHECKPOINT_SUFFIX}" if match and match["base"] else None


def group_folder(topic_id: str, group: str) -> str:
    """The relative name of a group's folder; raises InvalidConfigError for an invalid name of a group.

    It has the topic's id, so that a new topic at the same address does not get the groups of a dropped one.
    """
    if not isinstance(group, str):
        raise InvalidConfigError("a group's name must be a string", group=repr(group))
    try:
        escaped = _ESCAPED_BYTE.sub(lambda match: b"~%02x" % match[0][0], group.encode()).decode()
    except UnicodeEncodeError:
        text = "a group's name must be valid Unicode: it has half of a surrogate pair"
        raise InvalidConfigError(text, group=repr(group)) from None
    if not 0 < len(escaped) <= MAX_TOPIC_NAME_LENGTH:
        text = f"a group's name must have 1 to {MAX_TOPIC_NAME_LENGTH} bytes; any but a-z A-Z 0-9 . _ - counts as 3"
        raise InvalidConfigError(text, group=repr(group))
    return f"{GROUPS_DIR}/{topic_id}/{escaped}"


def parse_group_folder(name: str) -> str | None:
    if not _GROUP.fullmatch(name):
        return None
    group = _ESCAPES.sub(lambda match: bytes.fromhex(match[1].decode()), name.encode()).decode("utf-8", "replace")
    # a group has one folder: ignore other spellings of its name
    return group if group_folder("", group).endswith(f"/{name}") else None


def heartbeat_file(member: str) -> str:
    return f"{member}.beat"


def parse_heartbeat_file(name: str) -> str | None:
    return match[1] if (match := _HEARTBEAT.fullmatch(last_part(name))) else None


def temporary_file(unique_hex: str) -> str:
    return f".{unique_hex}.tmp"


def probe_file(unique_hex: str) -> str:
    return f".probe-{unique_hex}"


def is_lock_file(name: str) -> bool:
    return last_part(name).removesuffix(PAGE_COPY) in (LOCK_FILE, FLUSH_FILE)


def is_left_over(name: str) -> bool:
    """True for a temporary file or a probe, which remains only if its writer died."""
    return _TEMPORARY.fullmatch(last_part(name)) is not None


def new_id() -> str:
    return uuid.uuid4().hex

"""A pending append, which another writer may commit: a small file in `_pending/`."""

from __future__ import annotations

import base64
import uuid
import zlib
from collections.abc import Sequence

from distlog.core import paths
from distlog.core.commits.actions import Action, Add, SetTransaction
from distlog.core.commits.commit_json import Commit
from distlog.core.commits.segment_info import SegmentInfo
from distlog.core.commits.segment_table import SegmentTable
from distlog.core.commits.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError, StorageError, UnsupportedVersionError
from distlog.core.storage.storage import Storage

# It is a commit without a place in the log, named by the stem of its first segment. A short one is in the file's name
# too: deflated, in the letters of URLs' base64. So a writer that commits what waits lists the folder, and reads no
# file: if a hundred small files are read at once, one read always takes long. The dictionary of the compression is
# the text that all pending appends share, with the topic's id and the stem: so a name has about 30 letters for each
# part of a bundle. An object store's names have at most 1,024 bytes, including the folders.


#: The most bytes of a file, and of its whole address with the name.
LARGEST_PENDING, LONGEST_ADDRESS = 64 << 10, 1000
#: The operations of appends that wait: any, and one whose records all have keys, which compacted topics ask for.
PENDING, PENDING_KEYED = "append", "append-keyed"
#: The usual content of a pending append; part of the format: another one needs another ending of the names.
_ALIKE = (
    '},{"transaction":{"app_id":"","batch_id":"offsets":{},"in_order":true}}],"operation":"append-keyed","writer":"'
    'distlog","actions":[{"add":{"partition":0,"stem":"base_offset":0,"next_offset":1,"stored_base_offset":0,'
    '"record_count":1,"log_bytes":1,"offset_index_bytes":0,"time_index_bytes":12,"txn_index_bytes":0,'
    '"first_timestamp":17,"max_timestamp":17,"offset_of_max_timestamp":0,"compression":"zstd","gzip","snappy","lz4",'
    '"none","leader_epoch":-1,"compacted":false,"has_transactions":false,"created_ms":17,"crc32c":,"min_timestamp":17,'
    '"append_time_ms":-1,"offset_index_crc32c":0,"time_index_crc32c":,"txn_index_crc32c":0,"first_batch_crc":,'
    '"last_batch_crc":,"first_unstable_offset":-1,"log_position":-1,"offset_index_position":-1,"time_index_position":'
    '-1,"has_producers":false}}],"crc32c":{"format":1,"version":0,"id":"00000000-0000-0000-0000-000000000000","prev":'
    'null,"topic_id":"","timestamp_ms":0,"operation":"append","writer":"distlog","actions":[{"adds":{"stems":[""],'
    '"partition":[0,1,1,1,1,1],"stem":0,"base_offset":0,"next_offset":[1,"stored_base_offset":0,"record_count":[1,'
    '"log_bytes":[1,"offset_index_bytes":0,"time_index_bytes":12,"txn_index_bytes":0,"first_timestamp":0,'
    '"max_timestamp":[-1,"offset_of_max_timestamp":0,"compression":"none","created_ms":[1,0,0,0,0],"crc32c":[],'
    '"min_timestamp":0,"offset_index_crc32c":0,"time_index_crc32c":[],"txn_index_crc32c":0,"first_batch_crc":[],'
    '"last_batch_crc":0,"first_unstable_offset":-1,"log_position":[0,],"time_index_position":[,12,12,12,12]}}],'
    '"crc32c":'
)
_NO_ID = str(uuid.UUID(int=0))


def pending_append(
    storage: Storage,
    snapshot: Snapshot,
    segments: Sequence[SegmentInfo],
    batch: SetTransaction | None,
    *,
    is_keyed: bool,
) -> Commit | None:
    """Return an append of the segments that other writers may commit; None if they may not.

    They may not on a disk, where a commit is quick, or if the append is large.

    `batch` is of the application that appends, if it names any. `is_keyed` says that all records have keys.
    """
    if storage.is_local or isinstance(segments, SegmentTable):
        return None
    if not segments or paths.stem_read_version(segments[0].stem) is None:
        return None
    if not all(map(is_plain, segments)):
        return None
    return Commit(
        version=0,
        id=_NO_ID,
        prev=None,
        topic_id=snapshot.topic_id,
        timestamp_ms=0,
        operation=PENDING_KEYED if is_keyed else PENDING,
        writer="distlog",
        actions=(*map(Add, segments), *([batch] if batch else [])),
    )


def is_plain(segment: SegmentInfo) -> bool:
    """True if nothing in the segment depends on the commit before it."""
    return segment.append_time_ms == -1 and not segment.has_producers and not segment.has_transactions


def first_stem(actions: Sequence[Action]) -> str:
    """The stem of the first action's segment, by which a waiting append is named; empty if it adds none."""
    first = actions[0] if actions else None
    return first.segment.stem if isinstance(first, Add) else ""


def file_of(append: Commit, data: bytes, storage: Storage, *, by_name: bool = True) -> str:
    """Return the file name of an append, encoded as `data`; with `by_name` it holds the append if it fits."""
    stem = first_stem(append.actions)
    if not by_name:
        return paths.pending_file(stem)
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=_dictionary(stem, append.topic_id))
    text = base64.urlsafe_b64encode(squeezed.compress(data) + squeezed.flush()).rstrip(b"=").decode()
    if len(storage.url.encode()) + len(paths.pending_file(stem, "x")) + len(text) <= LONGEST_ADDRESS:
        return paths.pending_file(stem, text)
    return paths.pending_file(stem)


def read(storage: Storage, file: str, topic_id: str) -> Commit | None:
    """The append of the topic that waits as this file; None if there is none that this library can commit.

    An append in the name needs no request. If its file was deleted since it was listed, it was committed.
    """
    stem, text = paths.parse_pending_file(file) or "", paths.actions_in_pending_name(file)
    try:
        data = storage.read(file, 0, LARGEST_PENDING + 1) if text is None else _unpacked(text, stem, topic_id)
        append = Commit.decode(data, file)
    except (FileNotFoundError, StorageError, CorruptMetadataError, UnsupportedVersionError, ValueError, zlib.error):
        return None
    return append if first_stem(append.actions) == stem else None


def _unpacked(text: str, stem: str, topic_id: str) -> bytes:
    squeezed = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    return zlib.decompressobj(-15, zdict=_dictionary(stem, topic_id)).decompress(squeezed, LARGEST_PENDING)


def _dictionary(stem: str, topic_id: str) -> bytes:
    return f"{_ALIKE}{topic_id}{stem}".encode()

"""Finds the multipart uploads of killed writers. Nobody finishes them, and their parts cost money until an abort."""

from __future__ import annotations

import logging

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.errors import StorageError
from distlog.core.maintenance.unreferenced_files import Referenced
from distlog.core.storage.storage import Storage, UnfinishedUpload

_log = logging.getLogger(__name__)


def dead_uploads(storage: Storage, referenced: Referenced, floor: int, before_ms: int) -> list[UnfinishedUpload]:
    """The unfinished uploads to a topic's own file names that no commit can need.

    - An upload to an unreferenced segment is dead if its writer read a version below the gc `floor`: its commit
      would be refused.
    - An upload to a manifest is dead under the same rule: its commit is there, or would be refused.
    - An upload to a referenced segment or to a checkpoint is dead if it was started before `before_ms`. The file is
      there, and making an index or a checkpoint anew does not take so long.
    """
    try:
        found = storage.uploads()
    except StorageError as error:
        _log.warning("unfinished uploads stay, as they cannot be listed (s3:ListBucketMultipartUploads): %s", error)
        return []
    return [upload for upload in found if _is_dead(upload, referenced, floor, before_ms)]


def _is_dead(upload: UnfinishedUpload, referenced: Referenced, floor: int, before_ms: int) -> bool:
    stem = paths.parse_segment_file(upload.name, referenced.topic)
    if stem is not None and stem not in referenced.stems:
        read_version = paths.stem_read_version(stem[1])
        return read_version is not None and read_version < floor
    manifest = paths.manifest_read_version(upload.name)
    if manifest is not None:
        return manifest < floor
    is_known = stem is not None or checkpoint.version_of(upload.name) is not None
    return is_known and upload.started_ms < before_ms

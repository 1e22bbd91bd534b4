"""Finds the multipart uploads of killed writers. Nobody finishes them, and their parts cost money until an abort."""

from __future__ import annotations

import logging

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint
from distlog.core.errors import StorageError
from distlog.core.maintenance.vacuuming.unreferenced_files import Referenced, is_below, stem_of
from distlog.core.storage.storage import Storage, UnfinishedUpload

_log = logging.getLogger(__name__)


def dead_uploads(storage: Storage, referenced: Referenced, floor: int, before_ms: int) -> list[UnfinishedUpload]:
    """The unfinished uploads to a topic's own file names that no commit can need.

    - An upload to an unreferenced segment or bundle is dead if its writer read a version below the gc `floor`: its
      commit would be refused.
    - An upload to a manifest is dead under the same rule: its commit is there, or would be refused.
    - An upload to a referenced segment or bundle, or to a checkpoint, is dead if it was started before `before_ms`.
      The file is there, and making an index or a checkpoint anew does not take so long.
    """
    try:
        found = storage.uploads()
    except StorageError as error:
        _log.warning("unfinished uploads stay, as they cannot be listed (s3:ListBucketMultipartUploads): %s", error)
        return []
    return [upload for upload in found if _is_dead(upload, referenced, floor, before_ms)]


def _is_dead(upload: UnfinishedUpload, referenced: Referenced, floor: int, before_ms: int) -> bool:
    stem = stem_of(upload.name, referenced.topic)
    if stem is not None and stem not in referenced.stems:
        return is_below(stem, floor)
    manifest = paths.manifest_read_version(upload.name)
    if manifest is not None:
        return manifest < floor
    is_known = stem is not None or checkpoint.version_of(upload.name) is not None
    return is_known and upload.started_ms < before_ms

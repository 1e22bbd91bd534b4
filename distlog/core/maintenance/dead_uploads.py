"""Multipart uploads that nobody will finish: a writer that was killed leaves its parts, which cost until aborted."""

from __future__ import annotations

import logging

from distlog.core import paths
from distlog.core.commits import checkpoint
from distlog.core.errors import StorageError
from distlog.core.maintenance.unreferenced_files import Named
from distlog.core.storage.storage import Storage, UnfinishedUpload

_log = logging.getLogger(__name__)


def dead_uploads(storage: Storage, named: Named, floor: int, before_ms: int) -> list[UnfinishedUpload]:
    """The unfinished uploads that nothing can come of, of those to a topic's own names.

    Of a segment that is not named and was begun below the gc `floor`: its commit is refused. Of a manifest that was
    begun below it: its commit names another, or was put when the upload was over. Of a segment that is named,
    and of a checkpoint, if it was begun before `before_ms`: its files are there, and what makes an index or a
    checkpoint anew takes no such time.
    """
    try:
        found = storage.uploads()
    except StorageError as error:
        _log.warning("unfinished uploads stay, as they cannot be listed (s3:ListBucketMultipartUploads): %s", error)
        return []
    return [upload for upload in found if _is_dead(upload, named, floor, before_ms)]


def _is_dead(upload: UnfinishedUpload, named: Named, floor: int, before_ms: int) -> bool:
    stem = paths.parse_segment_file(upload.name, named.topic)
    if stem is not None and stem not in named.stems:
        begin = paths.stem_begin(stem[1])
        return begin is not None and begin < floor
    manifest = paths.manifest_begin(upload.name)
    if manifest is not None:
        return manifest < floor
    is_known = stem is not None or checkpoint.version_of(upload.name) is not None
    return is_known and upload.started_ms < before_ms

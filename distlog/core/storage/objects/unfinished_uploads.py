"""Lists and aborts S3's unfinished multipart uploads, which cost money until they are aborted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from distlog.core.storage.backend import UnfinishedUpload
from distlog.core.times import to_ms

if TYPE_CHECKING:
    from distlog.core.storage.objects.store import ObjectStore


def list_uploads(store: ObjectStore, folder: str) -> list[UnfinishedUpload]:
    """All unfinished uploads to keys below `folder`, with whole paths; one request per thousand."""
    return list(_pages(store, folder)) if store.protocol == "s3" else []


def abort_upload(store: ObjectStore, upload: UnfinishedUpload) -> None:
    """Abort the upload; one that is gone is no error."""
    bucket, key, _ = store.fs.split_path(upload.name)

    def abort() -> Any:
        store.counters.deletes += 1
        return store.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

    try:
        store.retried("abort the upload of", upload.name, abort)
    except FileNotFoundError:
        return


def _pages(store: ObjectStore, folder: str) -> Iterator[UnfinishedUpload]:
    _, key, _ = store.fs.split_path(folder)
    root = folder[: len(folder) - len(key)]
    after: dict[str, str] | None = {}
    while after is not None:
        reply = store.retried("list the uploads below", folder, partial(_page, store, folder, after))
        for one in reply.get("Uploads", []):
            yield UnfinishedUpload(root + one["Key"], one["UploadId"], to_ms(one["Initiated"]))
        more = reply.get("IsTruncated")
        after = {"KeyMarker": reply["NextKeyMarker"], "UploadIdMarker": reply["NextUploadIdMarker"]} if more else None


def _page(store: ObjectStore, folder: str, after: dict[str, str]) -> Any:
    bucket, key, _ = store.fs.split_path(folder)
    store.counters.lists += 1
    return store.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/", **after)

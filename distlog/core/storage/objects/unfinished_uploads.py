"""Lists and aborts S3's unfinished multipart uploads, which cost money until they are aborted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from distlog.core.storage.backend import UnfinishedUpload
from distlog.core.storage.objects.requests import ObjectRequests
from distlog.core.times import to_ms


def list_uploads(requests: ObjectRequests, folder: str) -> list[UnfinishedUpload]:
    """All unfinished uploads to keys below `folder`, with whole paths; one request per thousand."""
    return list(_pages(requests, folder)) if requests.protocol == "s3" else []


def abort_upload(requests: ObjectRequests, upload: UnfinishedUpload) -> None:
    """Abort the upload; one that is gone is no error."""
    bucket, key, _ = requests.fs.split_path(upload.name)

    def abort() -> Any:
        requests.counters.deletes += 1
        return requests.fs.call_s3("abort_multipart_upload", Bucket=bucket, Key=key, UploadId=upload.id)

    try:
        requests.retried("abort the upload of", upload.name, abort)
    except FileNotFoundError:
        return


def _pages(requests: ObjectRequests, folder: str) -> Iterator[UnfinishedUpload]:
    _, key, _ = requests.fs.split_path(folder)
    root = folder[: len(folder) - len(key)]
    after: dict[str, str] | None = {}
    while after is not None:
        reply = requests.retried("list the uploads below", folder, partial(_page, requests, folder, after))
        for one in reply.get("Uploads", []):
            yield UnfinishedUpload(root + one["Key"], one["UploadId"], to_ms(one["Initiated"]))
        more = reply.get("IsTruncated")
        after = {"KeyMarker": reply["NextKeyMarker"], "UploadIdMarker": reply["NextUploadIdMarker"]} if more else None


def _page(requests: ObjectRequests, folder: str, after: dict[str, str]) -> Any:
    bucket, key, _ = requests.fs.split_path(folder)
    requests.counters.lists += 1
    return requests.fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=f"{key}/", **after)

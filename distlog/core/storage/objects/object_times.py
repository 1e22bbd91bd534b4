"""The times of an object store: when its objects were written, and now, both by the store's own clock."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from distlog.core import paths
from distlog.core.config import MAX_LONG
from distlog.core.errors import StorageError
from distlog.core.storage.objects.requests import ObjectRequests
from distlog.core.times import to_ms

#: What the clients of S3, Google, Azure and memory call it.
_MODIFIED = ("LastModified", "mtime", "updated", "last_modified", "created")


def modified_ms(entry: Mapping[str, Any]) -> int:
    """When a listed object was written, in ms since 1970; MAX_LONG if the store does not say."""
    said = next((entry[name] for name in _MODIFIED if entry.get(name)), MAX_LONG)
    if isinstance(said, datetime | str):
        return to_ms(said)
    return int(said * 1000) if isinstance(said, float) else MAX_LONG


def now_ms(requests: ObjectRequests, folder: str) -> int:
    """The store's time now: the Date of a reply on S3, elsewhere the time of an object that was just written."""
    if requests.protocol == "s3":
        return requests.retried("get the storage's time", folder, lambda: _date_of_reply(requests, folder))
    path = f"{folder}/{paths.probe_file(uuid.uuid4().hex)}"
    requests.put(path, b"what time is it")
    try:
        written_ms = modified_ms(requests.describe(path))
    finally:
        requests.delete(path)
    if written_ms == MAX_LONG:
        raise StorageError("this storage does not say when an object was written", file=folder)
    return written_ms


def _date_of_reply(requests: ObjectRequests, folder: str) -> int:
    # To list one key needs no more permissions than to load a topic, and no object.
    bucket, key, _ = requests.fs.split_path(folder)
    requests.counters.lists += 1
    reply = requests.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key}/", MaxKeys=1)
    return to_ms(parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]))

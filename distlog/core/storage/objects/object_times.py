"""An object store's own time: of its objects, and now. No process's clock takes part."""

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
    """When an object that a client listed was written, in ms since 1970; MAX_LONG where it does not say."""
    said = next((entry[name] for name in _MODIFIED if entry.get(name)), MAX_LONG)
    if isinstance(said, datetime | str):
        return to_ms(said)
    return int(said * 1000) if isinstance(said, float) else MAX_LONG


def now_ms(requests: ObjectRequests, folder: str) -> int:
    """What time it is at the store: the Date of one of S3's replies, elsewhere the time of an object just written."""
    if requests.protocol == "s3":
        return requests.retried("ask for its time", folder, lambda: _date_of_reply(requests, folder))
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
    # A list of one key needs no right that a load of a topic does not need, nor an object to ask about.
    bucket, key, _ = requests.fs.split_path(folder)
    requests.counters.lists += 1
    reply = requests.fs.call_s3("list_objects_v2", Bucket=bucket, Prefix=f"{key}/", MaxKeys=1)
    return to_ms(parsedate_to_datetime(reply["ResponseMetadata"]["HTTPHeaders"]["date"]))

"""Checkpoints: files with the whole state at one version, so that a topic opens without its history.

A checkpoint is never required: if it is missing or wrong, an older one is used, or the commits. Its name holds the
first 32 hexadecimal digits of the SHA-256 of the file. So a flipped bit is noticed, and writers that race write
different files or the same bytes.
"""

from __future__ import annotations

import hashlib

from distlog.core import paths
from distlog.core.commits.checkpoints import checkpoint_table
from distlog.core.commits.checkpoints.checkpoint_format import decode, encode
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import CorruptMetadataError
from distlog.core.storage.storage import Storage

#: A million segments take 30 to 60 MB.
MAX_BYTES = 256 << 20
_LONGEST_NAME = 200


def write(storage: Storage, snapshot: Snapshot) -> str:
    """Write a checkpoint of `snapshot` and then the hint that points to it; returns its name.

    Raises ValueError when readers would refuse the checkpoint.
    """
    data = _encoded(snapshot)
    name = paths.checkpoint_file(snapshot.version, _digest(data))
    storage.put(name, data)
    storage.put(paths.LAST_CHECKPOINT, name.encode())
    return name


def _encoded(snapshot: Snapshot) -> bytes:
    """A checkpoint that readers accept: not packed where its rows are so alike that it would look like a bomb."""
    data = encode(snapshot)
    try:
        checkpoint_table.check(data)
    except ValueError:
        data = encode(snapshot, is_packed=False)
        checkpoint_table.check(data)
    if len(data) > MAX_BYTES:
        raise ValueError(f"a checkpoint takes up to {MAX_BYTES} bytes, and this one {len(data)}")
    return data


def read(storage: Storage, name: str) -> Snapshot:
    """The state that the checkpoint `name` holds.

    Raises CorruptMetadataError, or FileNotFoundError when there is no such file; then use another checkpoint. Raises
    UnsupportedVersionError when only a newer library may read the topic.
    """
    data = storage.read(name, 0, MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise CorruptMetadataError("the checkpoint is larger than any checkpoint may be", file=name)
    if paths.checkpoint_file(version_of(name) or 0, _digest(data)) != name:
        raise CorruptMetadataError("the checkpoint's checksum is wrong", file=name)
    snapshot = decode(data, name)
    if snapshot.version != version_of(name):
        raise CorruptMetadataError("the checkpoint is not of the version in its name", file=name)
    return snapshot


def version_of(name: str) -> int | None:
    """The version of the checkpoint `name` (relative to the topic), or None for any other file."""
    folder, _, file = name.rpartition("/")
    return paths.parse_checkpoint_file(file) if folder == paths.COMMITS_DIR else None


def read_hint(storage: Storage) -> str | None:
    """The name of the checkpoint that was written last, or None; it may be old, gone or wrong."""
    try:
        name = storage.read(paths.LAST_CHECKPOINT, 0, _LONGEST_NAME + 1).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    return None if version_of(name) is None else name


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]

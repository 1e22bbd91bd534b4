"""Manifests: files with the actions of commits that are too large for a conditional put.

A manifest has one action per line, or many in columns, as in a commit. Its commit holds the name, size and checksum
of the manifest instead of the actions. The manifest is durable before the commit is put, and has a unique name, so
that the loser of a race overwrites nothing. A manifest of a commit is kept for ever, as the commit is. Vacuum deletes
an unreferenced manifest that was begun below the gc floor.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Sequence

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits.format import fields, json_text
from distlog.core.commits.format.action_json import read_items, write_items
from distlog.core.commits.format.actions import MAX_MANIFEST_BYTES, Action, Manifest
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.format.features import MANIFEST, Requires
from distlog.core.errors import CommitConflictError, CorruptMetadataError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

# The least bytes of a segment's action: too many segments are refused before their commit is encoded.
_ADD_BYTES = 500


def encode(actions: Sequence[Action]) -> bytes:
    """The bytes of a manifest of `actions`."""
    lines = (json.dumps(item, default=fields.write, separators=(",", ":")) for item in write_items(actions))
    return b"".join(line.encode() + b"\n" for line in lines)


def expanded(commit: Commit, read: Callable[[Manifest], bytes]) -> Commit:
    """`commit` with the actions of its manifest, which `read` reads; CorruptMetadataError if they are not valid."""
    if not any(isinstance(action, Manifest) for action in commit.actions):
        return commit
    actions: list[Action] = []
    for action in commit.actions:
        actions += _decode(read(action), action) if isinstance(action, Manifest) else [action]
    return dataclasses.replace(commit, actions=tuple(actions), size=commit.size + manifest_bytes(commit))


def manifest_bytes(commit: Commit) -> int:
    """The size of the manifests of `commit`."""
    return sum(action.size for action in commit.actions if isinstance(action, Manifest))


def _decode(data: bytes, manifest: Manifest) -> list[Action]:
    file = manifest.file
    if len(data) != manifest.size or crc32c(data) != manifest.crc32c:
        raise CorruptMetadataError("the manifest does not match its commit; restore it from a copy", file=file)
    try:
        json_text.check(data)
        actions = read_items(json.loads(line) for line in data.splitlines())
    except (ValueError, RecursionError) as error:
        raise CorruptMetadataError(f"not a manifest: {error}; restore the file from a copy", file=file) from error
    if any(isinstance(action, Manifest) for action in actions):
        raise CorruptMetadataError("a manifest names no manifest; restore the file from a copy", file=file)
    return actions


def read(storage: Storage, manifest: Manifest) -> bytes:
    """The bytes of `manifest`, at most one more than its size; CorruptMetadataError when it is missing."""
    try:
        return storage.read(manifest.file, 0, manifest.size + 1)
    except FileNotFoundError:
        raise CorruptMetadataError("a manifest is missing; restore it from a copy", file=manifest.file) from None


class CommitWriter:
    """Makes the bytes of one commit, again after each lost race, and a manifest if the commit is too large.

    A commit of more than `limit` bytes gets a manifest.
    """

    def __init__(self, storage: Storage, limit: int = MAX_CONDITIONAL_BYTES) -> None:
        self._storage, self._limit = storage, limit
        self._manifest: Manifest | None = None
        self._lines = b""
        self._is_written = False

    def encode(self, commit: Commit, read_version: int, gc_floor: int) -> bytes:
        """The commit's bytes. `read_version` is that of a new manifest; one with the same actions is kept.

        Raises CommitConflictError when the commit is too large even with a manifest.
        """
        if len(commit.actions) * _ADD_BYTES <= self._limit:
            data = commit.encode()
            if len(data) <= self._limit:
                self._manifest = None
                return data
        self._manifest = self._manifest_of(encode(commit.actions), read_version, gc_floor)
        requires = commit.requires.also(Requires(reader=(MANIFEST,)))
        return dataclasses.replace(commit, actions=(self._manifest,), requires=requires).encode()

    def _manifest_of(self, lines: bytes, read_version: int, gc_floor: int) -> Manifest:
        if len(lines) > MAX_MANIFEST_BYTES:
            raise CommitConflictError(
                f"nothing was committed: a commit takes up to {MAX_MANIFEST_BYTES} bytes; do it in several",
                size=len(lines),
            )
        last = self._manifest
        if last and lines == self._lines and (paths.manifest_read_version(last.file) or 0) >= gc_floor:
            return last
        self._lines, self._is_written = lines, False
        return Manifest(paths.manifest_file(read_version, uuid.uuid4().hex), len(lines), crc32c(lines))

    def decode(self, data: bytes, file: str) -> Commit:
        """The commit that readers get from `data`, which `encode` made."""
        return expanded(Commit.decode(data, file), lambda manifest: self._lines)

    def write_manifest(self) -> None:
        """Make a new manifest durable; call it before the commit is put."""
        if self._manifest and not self._is_written:
            self._storage.put(self._manifest.file, self._lines)
            self._is_written = True

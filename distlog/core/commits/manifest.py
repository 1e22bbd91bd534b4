"""Manifests: files that hold the actions of a commit which is larger than a conditional put.

One action per line, as in a commit, which names the file instead with its size and checksum. It is written, and
durable, before the commit, under a name of its own, so that who loses a race overwrites nothing. What a commit
names stays for ever, as the commit does; what none names goes as other files do that were begun below the gc floor.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Sequence

from crc32c import crc32c

from distlog.core import paths
from distlog.core.commits import fields, json_text
from distlog.core.commits.action_json import read_action, write_action
from distlog.core.commits.actions import MAX_MANIFEST_BYTES, Action, Manifest
from distlog.core.commits.commit import Commit
from distlog.core.commits.features import MANIFEST, Requires
from distlog.core.errors import CommitConflictError, CorruptMetadataError
from distlog.core.storage.storage import MAX_CONDITIONAL_BYTES, Storage

# What a segment takes at least: of so many that they cannot fit, no commit is made just to see that.
_ADD_BYTES = 500


def encode(actions: Sequence[Action]) -> bytes:
    """The bytes of a manifest of `actions`."""
    lines = (json.dumps(write_action(action), default=fields.write, separators=(",", ":")) for action in actions)
    return b"".join(line.encode() + b"\n" for line in lines)


def expanded(commit: Commit, read: Callable[[Manifest], bytes]) -> Commit:
    """`commit` with the actions of its manifest, which `read` reads, in its place; CorruptMetadataError otherwise."""
    if not any(isinstance(action, Manifest) for action in commit.actions):
        return commit
    actions: list[Action] = []
    for action in commit.actions:
        actions += _decode(read(action), action) if isinstance(action, Manifest) else [action]
    return dataclasses.replace(commit, actions=tuple(actions), size=commit.size + manifest_bytes(commit))


def manifest_bytes(commit: Commit) -> int:
    """The size of the files that `commit` names."""
    return sum(action.size for action in commit.actions if isinstance(action, Manifest))


def _decode(data: bytes, manifest: Manifest) -> list[Action]:
    file = manifest.file
    if len(data) != manifest.size or crc32c(data) != manifest.crc32c:
        raise CorruptMetadataError("the manifest is not what its commit says; restore it from a copy", file=file)
    try:
        json_text.check(data)
        return [_action(line) for line in data.splitlines()]
    except (ValueError, RecursionError) as error:
        raise CorruptMetadataError(f"not a manifest: {error}; restore the file from a copy", file=file) from error


def _action(line: bytes) -> Action:
    action = read_action(json.loads(line))
    if isinstance(action, Manifest):
        raise ValueError("a manifest names no manifest")
    return action


def read(storage: Storage, manifest: Manifest) -> bytes:
    """The bytes of `manifest`, up to one more than it should have; CorruptMetadataError when it is missing."""
    try:
        return storage.read(manifest.file, 0, manifest.size + 1)
    except FileNotFoundError:
        raise CorruptMetadataError("a manifest is missing; restore it from a copy", file=manifest.file) from None


class CommitWriter:
    """Makes the bytes of one commit, again after each race it lost, with a manifest where it is too large.

    `limit` is the size in bytes from which on a manifest is needed.
    """

    def __init__(self, storage: Storage, limit: int = MAX_CONDITIONAL_BYTES) -> None:
        self._storage, self._limit = storage, limit
        self._manifest: Manifest | None = None
        self._lines = b""
        self._is_written = False

    def encode(self, commit: Commit, begin: int, gc_floor: int) -> bytes:
        """The commit's bytes. A manifest is begun at version `begin`, or is the one of before if that holds the same.

        Raises CommitConflictError when the commit is too large even so.
        """
        if len(commit.actions) * _ADD_BYTES <= self._limit:
            data = commit.encode()
            if len(data) <= self._limit:
                self._manifest = None
                return data
        self._manifest = self._manifest_of(encode(commit.actions), begin, gc_floor)
        requires = commit.requires.also(Requires(reader=(MANIFEST,)))
        return dataclasses.replace(commit, actions=(self._manifest,), requires=requires).encode()

    def _manifest_of(self, lines: bytes, begin: int, gc_floor: int) -> Manifest:
        if len(lines) > MAX_MANIFEST_BYTES:
            raise CommitConflictError(
                f"nothing was committed: a commit takes up to {MAX_MANIFEST_BYTES} bytes; do it in several",
                size=len(lines),
            )
        last = self._manifest
        if last and lines == self._lines and (paths.manifest_begin(last.file) or 0) >= gc_floor:
            return last
        self._lines, self._is_written = lines, False
        return Manifest(paths.manifest_file(begin, uuid.uuid4().hex), len(lines), crc32c(lines))

    def decode(self, data: bytes, file: str) -> Commit:
        """The commit that `data`, made by `encode`, is to its readers."""
        return expanded(Commit.decode(data, file), lambda manifest: self._lines)

    def write_manifest(self) -> None:
        """Make the manifest durable, if there is one that is not; before the commit is put."""
        if self._manifest and not self._is_written:
            self._storage.put(self._manifest.file, self._lines)
            self._is_written = True

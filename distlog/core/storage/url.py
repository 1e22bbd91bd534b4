"""Addresses of folders: checked, normalised, and free of credentials."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from distlog.core.errors import StorageError

_REMOTE = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]+)://(?P<rest>.*)", re.DOTALL)
_LOCAL = re.compile(r"(?:file|local):(?://(?P<server>[^/]*))?(?P<path>.*)", re.DOTALL | re.IGNORECASE)
_LOOKS_REMOTE = re.compile(r"[A-Za-z][A-Za-z0-9+.:-]+:/")
_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
_CONTAINER_AT_ACCOUNT = ("abfs", "abfss", "wasb", "wasbs")


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """A normalised address; `url` is an absolute path (protocol "file"), or a URL without a trailing slash."""

    protocol: str
    url: str


def parse_url(url: str | os.PathLike[str]) -> StorageUrl:
    """Normalise a path (made absolute) or a URL; `s3a` becomes `s3`.

    Raises StorageError when it holds credentials or is no address; the error does not repeat the address.
    """
    text = os.fspath(url)
    if local := _LOCAL.fullmatch(text):
        if local["server"] not in (None, "", "localhost"):
            # RFC 8089: what follows two slashes is a server, so `file://tmp/x` would not mean /tmp/x
            meant = f"file:///{local['server']}{local['path']}"
            raise StorageError(f"the address of a local folder has three slashes, as in {meant}; or give its path")
        return _local(local["path"])
    if remote := _REMOTE.fullmatch(text):
        return _remote(remote["protocol"].lower(), remote["rest"].strip("/"))
    if _LOOKS_REMOTE.match(text):
        raise StorageError("not an address: write a path, or one protocol and two slashes, as in s3://bucket/folder")
    return _local(text)


def _local(path: str) -> StorageUrl:
    if not path or "\0" in path:
        raise StorageError("the address is empty, or not a path")
    return StorageUrl("file", os.path.abspath(os.path.expanduser(path)))


def _remote(protocol: str, rest: str) -> StorageUrl:
    protocol = _ALIASES.get(protocol, protocol)
    _refuse_credentials(protocol, rest)
    if not rest:
        raise StorageError("the address names no bucket or folder", protocol=protocol)
    return StorageUrl(protocol, f"{protocol}://{rest}")


def _refuse_credentials(protocol: str, rest: str) -> None:
    """Addresses are logged, stored and shown, so secrets belong in the storage options or the environment."""
    login, at, _ = rest.partition("/")[0].rpartition("@")
    names_container = protocol in _CONTAINER_AT_ACCOUNT and ":" not in login
    if (at and not names_container) or "?" in rest:
        raise StorageError(
            "the address carries credentials or a query: take them out, and give credentials as storage options "
            "(key, secret, token, ...) or in the environment",
            protocol=protocol,
        )

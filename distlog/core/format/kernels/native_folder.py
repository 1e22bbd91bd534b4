"""The folders for the machine code of kernels, and whether a folder is trusted."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache as remember
from importlib.resources import files
from pathlib import Path

from distlog.core import VERSION

_LIBRARY = Path(__file__).parents[3]


@remember
def sources_digest() -> str:
    """Return the digest of all sources of kernels, since a kernel inlines code of other files, unnoticed by numba."""
    sources = [file for file in files("distlog.core.format.kernels").iterdir() if file.name.endswith(".py")]
    digest = hashlib.sha256()
    for source in sorted(sources, key=lambda file: file.name):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def code_folders(preferred: str) -> Iterator[Path]:
    """Yield the folders that may store code, the best first; `preferred` is the user's choice, or empty."""
    name = f"kernels-{VERSION}"
    if preferred:
        yield Path(preferred).absolute() / name
    if _LIBRARY.exists():  # not in an archive
        yield Path(__file__).parent / "__pycache__"
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():
        yield caches / "distlog" / name
    with suppress(OSError):  # no temporary folder can be written, as on a full disk
        yield Path(tempfile.gettempdir()) / f"distlog-kernels-{os.geteuid()}" / name


def distrust(folder: Path, library: Path = _LIBRARY) -> str | None:
    """Return why users other than this one, root and the owner of `library` may write to `folder`, or None."""
    owners = {0, os.geteuid()}
    above = () if library in folder.parents else (*folder.absolute().parents, *folder.resolve().parents)
    try:
        if library.exists():
            owners.add(library.stat().st_uid)
        for path in (*above, folder, folder.resolve(), *folder.glob("*.nb[ic]")):
            with suppress(FileNotFoundError):
                status = path.lstat()
                if status.st_uid not in owners:
                    return f"{path} belongs to user {status.st_uid}"
                if _may_others_write(status, is_parent=path in above):
                    return f"other users may write {path}"
    except OSError as error:
        return f"{folder} cannot be inspected: {error.strerror}"
    return None


def _may_others_write(status: os.stat_result, *, is_parent: bool) -> bool:
    if stat.S_ISLNK(status.st_mode) or (is_parent and status.st_mode & stat.S_ISVTX):
        return False  # as in /tmp: users cannot rename or replace files of other users
    # a user's own group has the number of the user
    is_own_group = status.st_gid in (0, status.st_uid)
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_own_group))

"""The folder where the machine code of kernels is kept, and which code there is trusted."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache as remember
from importlib.resources import files
from pathlib import Path

from distlog.core import VERSION

# ---
# Where the machine code of kernels is kept, and which code there is trusted.
#
# The code of one state of the kernels' sources has a folder of its own, named by the version and a digest. It lies
# in NUMBA_CACHE_DIR, beside the source, below the user's home, or below the temporary folder: in the first that can
# be written. An image for containers, or an installation of another user, has the code that `distlog warmup` left
# there, but can mostly not be written to. So a new folder begins with a copy of the code that was left in a better
# place.
#
# Numba keeps code beside the source of a function. So each kernel says that its source is a copy in that folder,
# which is the same for a library in an archive, wherever the archive lies.
#
# Kept code is pickled: its writer runs code in the process that reads it. So nothing is read or kept where
# other users than this one, root, and the owner of the library's source may write. The log says so.


_log = logging.getLogger("distlog")

#: The folder of the library's source.
_LIBRARY = Path(__file__).parents[2]
_KERNELS = "distlog.core.kernels"
#: How many states of the sources have code in one place; the ones that were not used for longest are deleted.
_STATES_KEPT = 8
#: The folder for code below that of the source, as numba names it.
CODE = "__pycache__"


def kept_source(module: str, folder: Path | None) -> Path | None:
    """The copy of the source of a module of kernels in the folder for code, or None if there is none."""
    package, _, stem = module.rpartition(".")
    name = f"{stem}.py"
    source = _sources().get(name)
    if package != _KERNELS or folder is None or source is None:
        return None
    copy = folder / name
    with suppress(OSError):
        if not copy.exists():
            temporary = folder / f"{name}.{uuid.uuid4().hex}"
            temporary.write_bytes(source)
            os.utime(temporary, (0, 0))  # some versions of numba trust no code of a source with another time
            temporary.replace(copy)
    return copy


@remember
def _sources() -> dict[str, bytes]:
    """By its path, each source file that a kernel may be made of, since a kernel has code of other files inlined."""
    kernels, tuples = files(_KERNELS), files("distlog.core") / "kernel_tuples.py"
    sources = {file.name: file.read_bytes() for file in kernels.iterdir() if file.name.endswith(".py")}
    return {**sources, f"../{tuples.name}": tuples.read_bytes()}


def usable_folder(folders: Sequence[Path]) -> Path | None:
    """The first of the folders that can be written, made if need be, if it is trusted; None if there is none."""
    for number, folder in enumerate(folders):
        try:
            if not folder.exists():
                _begin(folder, folders[:number])
            tempfile.TemporaryFile(dir=folder).close()
            os.utime(folder)
        except OSError:
            continue
        if _is_trusted(folder / CODE):
            return folder
    return None


def why_unusable(folder: Path) -> str:
    """The reason why the folder was not the one for code."""
    return distrust(folder / CODE, _LIBRARY) or f"{folder.parent} cannot be written"


def code_folders(compiler: str, chosen: str) -> list[Path]:
    """The folders that may be the one for code of this version of the compiler, the best first.

    `chosen` is where the user wants it, or empty.
    """
    digest = hashlib.sha256(repr((compiler, sorted(_sources().items()))).encode()).hexdigest()
    return [place / f"kernels-{VERSION}-{digest[:16]}" for place in _places(chosen)]


def _places(chosen: str) -> Iterator[Path]:
    if chosen:
        yield Path(chosen).absolute()
    if _LIBRARY.exists():  # not in an archive
        yield Path(__file__).parent / CODE
    caches = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"))
    if caches.is_absolute():
        yield caches / "distlog"
    with suppress(OSError):  # nothing temporary can be written, as on a full disk
        yield Path(tempfile.gettempdir()) / f"distlog-kernels-{os.geteuid()}"


def _begin(folder: Path, better: Sequence[Path]) -> None:
    """Make a folder for code, with the code of the first of the `better` ones that has any."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}")
    (temporary / CODE).mkdir(parents=True)
    try:
        for left in (other / CODE for other in better):
            if os.access(left, os.R_OK) and _is_trusted(left):
                for file in code_in(left):
                    shutil.copyfile(file, temporary / CODE / file.name)
                break
        with suppress(OSError):  # another process was first
            temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    states = sorted(folder.parent.glob("kernels-*"), key=lambda path: path.stat().st_mtime)
    for state in states[:-_STATES_KEPT]:
        shutil.rmtree(state, ignore_errors=True)


@remember
def _is_trusted(folder: Path) -> bool:
    reason = distrust(folder, _LIBRARY)
    if reason is not None:
        _log.warning(
            "code of distlog's kernels in %s is not used, since other users may write there, and so run code here: "
            "%s; set NUMBA_CACHE_DIR to a folder that you alone may write",
            folder,
            reason,
        )
    return reason is None


def distrust(folder: Path, library: Path) -> str | None:
    """Return the reason why users other than this one, root and `library`'s owner may write to `folder`, or None.

    A folder below `library` is as safe as its source, so its parents are not checked.
    """
    owners = {0, os.geteuid()}
    try:
        if library.exists():
            owners.add(library.stat().st_uid)
        above = {*folder.absolute().parents, *folder.resolve().parents}
        for path in (*_parents(folder, library), folder, folder.resolve(), *code_in(folder)):
            is_parent = path in above
            reason = _distrust(path, owners, is_parent=is_parent)
            if reason is not None:
                return reason
    except OSError as error:
        return f"{folder} cannot be looked at: {error.strerror}"
    return None


def _distrust(path: Path, owners: set[int], *, is_parent: bool) -> str | None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None  # another process has replaced a file, or nothing is there
    if status.st_uid not in owners:
        return f"{path} belongs to user {status.st_uid}"
    is_link = stat.S_ISLNK(status.st_mode)
    return f"other users may write {path}" if not is_link and _may_others_write(status, is_parent=is_parent) else None


def _parents(folder: Path, library: Path) -> Iterator[Path]:
    """The folders above, by their names and by where links lead."""
    if library not in folder.parents:
        yield from folder.absolute().parents
        yield from folder.resolve().parents


def code_in(folder: Path) -> list[Path]:
    """The files of code in a folder that may be missing."""
    return [path for path in folder.iterdir() if path.suffix in (".nbi", ".nbc")] if folder.exists() else []


def _may_others_write(status: os.stat_result, *, is_parent: bool) -> bool:
    if is_parent and status.st_mode & stat.S_ISVTX:
        return False  # as in /tmp: users cannot rename or replace other users' files
    # a user's own group has the number of the user
    is_own_group = status.st_gid in (0, status.st_uid)
    return bool(status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not is_own_group))

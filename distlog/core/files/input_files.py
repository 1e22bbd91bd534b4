"""The files that an append is given, in order: paths, folders and patterns become files with sizes and formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from distlog.core.errors import InvalidRecordError, StorageError
from distlog.core.files.formats import HEAD_BYTES, Kind, kind_of
from distlog.core.storage.backend import FileInfo
from distlog.core.storage.input_storage import InputStorage, shown
from distlog.core.storage.parallel import in_parallel

_MAGIC = re.compile(r"[*?\[{]")
#: Entries that a folder or a pattern passes over, as Hadoop and Spark do: logs and files that are being written.
_HIDDEN = ("_", ".")
#: Tasks of one thread each, so that a request is not the price of a thread.
_HEADS_PER_TASK = 64


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file to read: where it is, its size when it was listed, and its kind.

    What it grows later is not read. `url` may hold a signature; `name` is for messages.
    """

    url: str = field(repr=False)
    size: int
    kind: Kind

    @property
    def name(self) -> str:
        return shown(self.url)


def list_files(inputs: Sequence[str], storage: InputStorage, requested_format: str | None = None) -> list[InputFile]:
    """The files of the inputs: in their order, and the files of a folder or pattern by path.

    An input that exists is that file or folder, even with characters of a pattern in its name; else it may be a
    pattern with *, ?, [a-z], {a,b} and ** for any folders. Names in a folder or pattern that begin with `_` or `.`
    are passed over. `requested_format` is the caller's. Raises StorageError for an input that matches
    nothing, or has no reader, and InvalidRecordError for a kind of file that is not supported.
    """
    addresses = [storage.address(input_) for input_ in inputs]
    listings = in_parallel(partial(_files_of, storage), addresses)
    matches = [file for listing in listings for file in listing]
    groups = [matches[index : index + _HEADS_PER_TASK] for index in range(0, len(matches), _HEADS_PER_TASK)]
    if not storage.is_local(matches[0][0]) if matches else False:
        groups = [[file] for file in matches]
    return [file for group in in_parallel(partial(_described, storage, requested_format), groups) for file in group]


def _described(
    storage: InputStorage, requested_format: str | None, files: Sequence[tuple[str, int]]
) -> list[InputFile]:
    described = []
    for url, size in files:
        try:
            head = storage.read(url, 0, min(HEAD_BYTES, size)) if size else b""
        except FileNotFoundError:
            raise vanished(url) from None
        described.append(InputFile(url, size, kind_of(shown(url), head, requested_format)))
    return described


def vanished(url: str) -> InvalidRecordError:
    """The error of a file that was listed, and does not exist any more."""
    return InvalidRecordError("the file was deleted after it was listed", file=shown(url))


def shorter(file: InputFile, size: int) -> InvalidRecordError:
    return InvalidRecordError(
        "the file is shorter than when it was listed", file=file.name, listed=file.size, size=size
    )


def _files_of(storage: InputStorage, address: str) -> list[tuple[str, int]]:
    try:
        return [(address, storage.size(address))]
    except FileNotFoundError:
        pass
    entries, (folder, _, name) = storage.entries(address), address.rpartition("/")
    if entries or (storage.is_local(address) and name in storage.entries(folder or "/")):
        files = sorted(_below(storage, address, entries))
    elif _MAGIC.search(address):
        matches = {match for pattern in _alternatives(address) for match in _matches(storage, pattern)}
        files = sorted(matches)
    else:
        raise StorageError("no such file or folder", file=shown(address))
    if not files:
        raise StorageError("it has no files, or only hidden ones (_name, .name)", file=shown(address))
    return files


def _below(storage: InputStorage, folder: str, entries: Sequence[FileInfo | str]) -> Iterator[tuple[str, int]]:
    for entry in entries:
        name = entry.name if isinstance(entry, FileInfo) else entry
        if name.startswith(_HIDDEN):
            continue
        path = f"{folder.rstrip('/')}/{name}"
        if isinstance(entry, FileInfo):
            yield path, entry.size
        else:
            yield from _below(storage, path, storage.entries(path))


def _matches(storage: InputStorage, pattern: str) -> Iterator[tuple[str, int]]:
    """The files that a pattern without braces matches, and those below folders that it matches."""
    segments = pattern.split("/")
    first = next(number for number, segment in enumerate([*segments, "*"]) if _MAGIC.search(segment))
    if first == len(segments):
        # braces alone
        try:
            yield pattern, storage.size(pattern)
        except FileNotFoundError:
            yield from _below(storage, pattern, storage.entries(pattern))
        return
    folders = ["/".join(segments[:first])]
    for number, segment in enumerate(segments[first:], first):
        is_last = number == len(segments) - 1
        if segment == "**":
            folders = [path for folder in folders for path in _folders_below(storage, folder)]
            if not is_last:
                continue
            segment = "*"
        listings = in_parallel(storage.entries, [folder or "/" for folder in folders])
        is_match, next_folders = _segment(segment), list[str]()
        for folder, entries in zip(folders, listings, strict=True):
            for entry in entries:
                name = entry.name if isinstance(entry, FileInfo) else entry
                if not is_match.fullmatch(name) or (name.startswith(_HIDDEN) and segment[0] != name[0]):
                    continue
                if isinstance(entry, str):
                    next_folders.append(f"{folder}/{name}")
                elif is_last:
                    yield f"{folder}/{name}", entry.size
        folders = next_folders
    for folder in folders:
        yield from _below(storage, folder, storage.entries(folder))


def _folders_below(storage: InputStorage, folder: str) -> Iterator[str]:
    yield folder
    for entry in storage.entries(folder or "/"):
        if isinstance(entry, str) and not entry.startswith(_HIDDEN):
            yield from _folders_below(storage, f"{folder}/{entry}")


def _alternatives(pattern: str) -> list[str]:
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    prefix, suffix = pattern[: braces.start()], pattern[braces.end() :]
    return [alternative for choice in braces[1].split(",") for alternative in _alternatives(prefix + choice + suffix)]


def _segment(segment: str) -> re.Pattern[str]:
    """A part of a pattern between slashes, as a regular expression."""
    expressions, position = list[str](), 0
    while position < len(segment):
        character = segment[position]
        end = segment.find("]", position + 2) if character == "[" else -1
        if character == "[" and end > 0:
            inside = segment[position + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            negated = inside.startswith(("!", "^"))
            expressions.append(f"[{'^' if negated else ''}{inside[1:] if negated else inside}]")
            position = end + 1
            continue
        expressions.append({"*": ".*", "?": "."}.get(character) or re.escape(character))
        position += 1
    try:
        return re.compile("".join(expressions), re.DOTALL)
    except re.error:
        return re.compile(re.escape(segment))

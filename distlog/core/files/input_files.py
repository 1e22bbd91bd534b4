"""Input files: lists the files of paths, folders and patterns, detects their formats, and checks the options."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.storage.backend import FileInfo
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.storage import InputStorage, shown
from distlog.core.times import check_unit

_WILDCARDS = re.compile(r"[*?\[{]")
#: Folders and patterns skip names with these first characters, as Hadoop and Spark do: logs and unfinished files.
_HIDDEN = ("_", ".")
_HEADS_PER_TASK = 64  # the local files whose first bytes a thread reads, since its start costs more than a read
#: RECORDS: lines as `read --json` prints records, or Parquet with the columns of a topic.
TEXT, JSONL, RECORDS, CSV, PARQUET = "text", "jsonl", "records", "csv", "parquet"
FORMATS = (TEXT, JSONL, RECORDS, CSV, PARQUET)
HEAD_BYTES = 512  # how many first bytes show a file's format; the mark of tar is at byte 257
#: The endings of names, and the formats that they mean. Any other name means text.
FORMAT_ENDINGS: Mapping[str, str] = {
    ".jsonl": JSONL,
    ".ndjson": JSONL,
    ".json": JSONL,
    ".csv": CSV,
    ".parquet": PARQUET,
    ".parq": PARQUET,
    ".pq": PARQUET,
}
#: Endings of compressed and rotated files, removed to find the format. The compression is detected by content.
_OUTER_ENDINGS = re.compile(r"(?:\.(?:gz|gzip|bz2|zst|zstd|lz4|[0-9]{1,8}))+$")
COMPRESSIONS: Mapping[bytes, str] = {
    b"\x1f\x8b\x08": "gzip",
    b"BZh": "bz2",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x04\x22\x4d\x18": "lz4",
}
#: The first bytes of bzip2: BZh, the level, and the mark of a block, or of the end if there are no blocks.
_BZIP2_BLOCK = re.compile(rb"BZh[1-9](?:\x31\x41\x59\x26\x53\x59|\x17\x72\x45\x38\x50\x90)", re.DOTALL)
_PARQUET_MAGIC = b"PAR1"
#: First bytes of unsupported formats, and the names of the formats.
REFUSED: Mapping[bytes, str] = {
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"Rar!\x1a\x07": "rar",
    b"\xff\x06\x00\x00sNaPpY": "snappy",
    b"\x82SNAPPY\x00": "snappy",
    b"\x89LZO\x00": "lzo",
    b"LZIP\x01": "lzip",
    b"\x1f\x9d": "compress (.Z)",
    b"\x02\x21\x4c\x18": "lz4 of the legacy frame",
    b"Obj\x01": "Avro",
    b"ORC\x08": "ORC",
    b"ARROW1": "Arrow IPC",
    b"PARE": "encrypted Parquet",
    b"SQLite format 3\x00": "SQLite",
}
#: Unsupported formats by the ending of the name, since some have no fixed first bytes, and a compressed file begins
#: with the bytes of its codec. --format overrides them.
REFUSED_ENDINGS: Mapping[str, str] = {
    ".snappy": "snappy",
    ".deflate": "deflate",
    ".br": "brotli",
    ".lzo": "lzo",
    ".tsv": "tab-separated values",
    ".avro": "Avro",
    ".orc": "ORC",
    ".arrow": "Arrow IPC",
    ".feather": "Feather",
    ".xls": "Excel",
    ".xlsx": "Excel",
}
_TAR_MAGIC, _TAR_MAGIC_POSITION = b"ustar", 257
#: UTF-32 is first, since its mark begins with the mark of UTF-16.
_BYTE_ORDER_MARKS = {
    b"\xff\xfe\x00\x00": "UTF-32",
    b"\x00\x00\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
#: For each encoding, the indexes of the bytes that are not zero in four bytes of ASCII text.
_WIDE_ENCODINGS = {"UTF-32LE": (0,), "UTF-32BE": (3,), "UTF-16LE": (0, 2), "UTF-16BE": (1, 3)}
UTF8_MARK = b"\xef\xbb\xbf"
_MIN_WIDE_BYTES = 8  # how many bytes must look like UTF-16 or UTF-32 if the file has no byte order mark
_SizedFile = tuple[str, int]  # the address of a file, and its size
FAIL, SKIP = "fail", "skip"
NO_FIELDS = "a line of text has no fields: give --format jsonl, csv or parquet, or --pattern"
PATTERN_GROUPS = ("key", "value", "timestamp")  # the groups of a pattern that make a record


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file, its size when it was listed, and its kind. `url` may hold a signature; `name` is for messages."""

    url: str = field(repr=False)
    size: int
    kind: Kind

    @property
    def name(self) -> str:
        return shown(self.url)


def list_files(inputs: Sequence[str], storage: InputStorage, requested_format: str | None = None) -> list[InputFile]:
    """List the files of the inputs in their order, and the files of a folder or pattern by path.

    An input that does not exist may be a pattern with *, ?, [a-z], {a,b} and ** for any folders. Raises StorageError
    for an input that matches nothing or that no storage can read, and InvalidRecordError for unsupported kinds.
    """
    listings = in_parallel(partial(_files_of, storage), list(map(storage.address, inputs)))
    files = [file for listing in listings for file in listing]
    # the first file decides for all, since a wrong size only takes longer
    group_size = _HEADS_PER_TASK if files and storage.is_local(files[0][0]) else 1
    groups = [files[index : index + group_size] for index in range(0, len(files), group_size)]
    return [file for group in in_parallel(partial(_describe, storage, requested_format), groups) for file in group]


def _describe(storage: InputStorage, requested_format: str | None, files: Sequence[_SizedFile]) -> list[InputFile]:
    input_files = list[InputFile]()
    for url, size in files:
        try:
            head = storage.read(url, 0, min(HEAD_BYTES, size)) if size else b""
        except FileNotFoundError:
            raise deleted_error(url) from None
        input_files.append(InputFile(url, size, kind_of(shown(url), head, requested_format)))
    return input_files


def deleted_error(url: str) -> InvalidRecordError:
    return InvalidRecordError("the file was deleted after it was listed: run again", file=shown(url))


def shortened_error(file: InputFile, size: int) -> InvalidRecordError:
    text = "the file became shorter after it was listed: read it again when no process writes to it"
    return InvalidRecordError(text, file=file.name, listed_size=file.size, size=size)


def read_range(storage: InputStorage, file: InputFile, start: int, end: int) -> bytes:
    """Return the bytes [start, end). Raises InvalidRecordError if the file was deleted, or became shorter."""
    try:
        content = storage.read(file.url, start, end) if start < end else b""
    except FileNotFoundError:
        raise deleted_error(file.url) from None
    if len(content) < end - start:
        raise shortened_error(file, start + len(content))
    return content


def _files_of(storage: InputStorage, address: str) -> list[_SizedFile]:
    with suppress(FileNotFoundError):
        return [(address, storage.size(address))]
    entries = storage.entries(address)
    parent, _, name = address.rpartition("/")
    # only the listing of the parent shows that an empty local folder exists
    if entries or (storage.is_local(address) and name in storage.entries(parent or "/")):
        files = sorted(_files_in_folder(storage, address, entries))
    elif _WILDCARDS.search(address):
        files = sorted({file for pattern in _brace_alternatives(address) for file in _matches(storage, pattern)})
    else:
        raise StorageError("the file or folder does not exist", file=shown(address))
    if not files:
        raise StorageError("the input has no files, or only hidden files (_name, .name)", file=shown(address))
    return files


def _files_in_folder(storage: InputStorage, folder: str, entries: Sequence[FileInfo | str]) -> Iterator[_SizedFile]:
    for entry in entries:
        name = entry.name if isinstance(entry, FileInfo) else entry
        if name.startswith(_HIDDEN):
            continue
        path = f"{folder.rstrip('/')}/{name}"
        if isinstance(entry, FileInfo):
            yield path, entry.size
        else:
            yield from _files_in_folder(storage, path, storage.entries(path))


def _matches(storage: InputStorage, pattern: str) -> Iterator[_SizedFile]:
    """Yield the files that a pattern without braces matches, and the files in folders that the pattern matches."""
    names = pattern.split("/")
    first_wildcard = next((number for number, name in enumerate(names) if _WILDCARDS.search(name)), len(names))
    if first_wildcard == len(names):
        # the pattern had only braces, which `_brace_alternatives` replaced
        try:
            yield pattern, storage.size(pattern)
        except FileNotFoundError:
            yield from _files_in_folder(storage, pattern, storage.entries(pattern))
        return
    folders = ["/".join(names[:first_wildcard])]
    for number, name_pattern in enumerate(names[first_wildcard:], first_wildcard):
        is_last = number == len(names) - 1
        if name_pattern == "**":
            folders = [path for folder in folders for path in _folders_in_folder(storage, folder)]
            if not is_last:
                continue
            name_pattern = "*"  # all files; the walk at the end yields some again, which `_files_of` drops
        listings = in_parallel(storage.entries, [folder or "/" for folder in folders])
        matcher, next_folders = _matcher(name_pattern), list[str]()
        for folder, entries in zip(folders, listings, strict=True):
            for entry in entries:
                name = entry.name if isinstance(entry, FileInfo) else entry
                # a pattern matches hidden names only if it begins with their first character
                if not matcher.fullmatch(name) or (name.startswith(_HIDDEN) and name_pattern[0] != name[0]):
                    continue
                if isinstance(entry, str):
                    next_folders.append(f"{folder}/{name}")
                elif is_last:
                    yield f"{folder}/{name}", entry.size
        folders = next_folders
    for folder in folders:
        yield from _files_in_folder(storage, folder, storage.entries(folder))


def _folders_in_folder(storage: InputStorage, folder: str) -> Iterator[str]:
    yield folder
    for entry in storage.entries(folder or "/"):
        if isinstance(entry, str) and not entry.startswith(_HIDDEN):
            yield from _folders_in_folder(storage, f"{folder}/{entry}")


def _brace_alternatives(pattern: str) -> list[str]:
    braces = re.search(r"\{([^{}]*)\}", pattern)
    if braces is None:
        return [pattern]
    prefix, suffix = pattern[: braces.start()], pattern[braces.end() :]
    patterns = [prefix + choice + suffix for choice in braces[1].split(",")]
    return [alternative for pattern in patterns for alternative in _brace_alternatives(pattern)]


def _matcher(name_pattern: str) -> re.Pattern[str]:
    try:
        # as in Hadoop, [^a] negates a class, as [!a] does
        return re.compile(fnmatch.translate(name_pattern.replace("[^", "[!")))
    except re.error:
        return re.compile(re.escape(name_pattern))


@dataclass(frozen=True, slots=True)
class Kind:
    """The format and the compression of a file; `compression` is the name of Arrow's codec, or None."""

    format: str
    compression: str | None = None


def kind_of(name: str, head: bytes, requested_format: str | None) -> Kind:
    """Return the kind of the file `name` that begins with `head`. Raises InvalidRecordError."""
    compression = compression_of(head)
    if compression is not None:
        return Kind(_format_by_name(name, requested_format), compression)
    check_content(name, head)
    if head.startswith(_PARQUET_MAGIC):
        if requested_format not in (None, PARQUET, RECORDS):
            raise InvalidRecordError(f"the file is Parquet, not {requested_format}: leave out --format", file=name)
        return Kind(PARQUET)
    name_format = _format_by_name(name, requested_format)
    if name_format == PARQUET and head:  # an empty file fails when Arrow opens it
        raise InvalidRecordError("this is not a Parquet file: give its format with --format", file=name)
    return Kind(name_format)


def compression_of(head: bytes) -> str | None:
    """Return the codec of a file that begins with `head`; None for a plain file."""
    codec = next((codec for magic, codec in COMPRESSIONS.items() if head.startswith(magic)), None)
    return None if codec == "bz2" and not _BZIP2_BLOCK.match(head) else codec  # text may begin with BZh


def check_content(name: str | None, head: bytes) -> None:
    """Raise InvalidRecordError if the first bytes, plain or decompressed, are of an unsupported format."""
    unsupported = next((kind for magic, kind in REFUSED.items() if head.startswith(magic)), None)
    if head.startswith(_TAR_MAGIC, _TAR_MAGIC_POSITION):
        unsupported = "tar"
    if unsupported:
        raise InvalidRecordError(f"{unsupported} files are not supported: {_remedy(unsupported)}", file=name)
    if encoding := _wide_encoding(head):
        text = f"the file is {encoding}: convert it, as in `iconv -f {encoding} -t UTF-8 FILE`"
        raise InvalidRecordError(text, file=name)


def check_decompressed(name: str, head: bytes) -> None:
    """Raise InvalidRecordError if decompressed data begins as an unsupported format, Parquet or compressed data."""
    check_content(name, head)
    if head.startswith(_PARQUET_MAGIC):
        raise InvalidRecordError("the file is compressed Parquet: decompress it first", file=name)
    if codec := compression_of(head):
        raise InvalidRecordError(f"the file is compressed twice: decompress the {codec} first", file=name)


def check_stream(head: bytes) -> None:
    """Raise InvalidRecordError if a stream begins as an unsupported format, Parquet or compressed data."""
    check_content(None, head)
    if head.startswith(_PARQUET_MAGIC):
        raise InvalidRecordError("the stream is Parquet, which is read from its end: write it to a file first")
    if codec := compression_of(head):
        raise InvalidRecordError(f"the stream is compressed with {codec}: decompress it first, as zcat does for gzip")


def _remedy(unsupported_format: str) -> str:
    if unsupported_format in ("tar", "zip", "7z", "rar"):
        return "unpack it, or pipe a member to `distlog append URL -`"
    if unsupported_format in ("xz", "lzip", "lzo", "compress (.Z)", "snappy", "lz4 of the legacy frame"):
        return "decompress it, as in `xzcat FILE | distlog append URL -`"
    return "convert it to Parquet, CSV or JSON lines, or append a DataFrame with its rows"


def _wide_encoding(head: bytes) -> str | None:
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    head = head[: len(head) // 4 * 4]  # without a mark: in ASCII text all bytes of a character but one are zero
    if len(head) < _MIN_WIDE_BYTES:
        return None
    zeros = [set(head[index::4]) == {0} for index in range(4)]
    has_bytes = [0 not in head[index::4] for index in range(4)]
    for encoding, text_indexes in _WIDE_ENCODINGS.items():
        if all(has_bytes[index] if index in text_indexes else zeros[index] for index in range(4)):
            return encoding
    return None


def _format_by_name(name: str, requested_format: str | None) -> str:
    if requested_format is not None:
        return requested_format
    base = _OUTER_ENDINGS.sub("", name.rpartition("/")[2].lower())
    ending = f".{base.rpartition('.')[2]}" if "." in base else ""
    if unsupported := REFUSED_ENDINGS.get(ending):
        text = f"{unsupported} is not supported: {_remedy(unsupported)}; or give --format"
        raise InvalidRecordError(text, file=name)
    return FORMAT_ENDINGS.get(ending, TEXT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read. If `format` is None, the file decides; if `partition` is None, the topic decides.

    `format` is one of FORMATS. `key`, `value` and `timestamp` name fields or columns. A time is a number in the unit
    `timestamp_unit`, or a text in ISO 8601 or in `time_format` (Python's strptime). `pattern` is a Python regular
    expression for lines of text. Each record gets `headers` after its own headers, and `partition` if not None. A bad
    line raises an error; with `bad_lines` "skip", it is left out and counted. `now_ms` is the time when the read was
    planned: a time without a year gets the latest year that puts it no more than a day after `now_ms`.
    """

    format: str | None = None
    key: str | None = None
    value: str | None = None
    timestamp: str | None = None
    timestamp_unit: str = "ms"
    key_separator: str | None = None
    pattern: str | None = None
    time_format: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    partition: int | None = None
    bad_lines: str = FAIL
    now_ms: int = 0

    def __post_init__(self) -> None:
        """Raise InvalidConfigError for options that do not fit together."""
        check_unit(self.timestamp_unit)
        if self.format not in (None, *FORMATS):
            raise InvalidConfigError(f"format must be one of {', '.join(FORMATS)}", format=self.format)
        if self.bad_lines not in (FAIL, SKIP):
            raise InvalidConfigError(f"bad_lines must be {FAIL} or {SKIP}", bad_lines=self.bad_lines)
        is_text = self.format in (None, TEXT)
        if self.key_separator is not None and (not is_text or not self.key_separator):
            raise InvalidConfigError("--key-separator needs at least one character, and --format text")
        if self.pattern is not None:
            if not is_text or self.key_separator is not None:
                raise InvalidConfigError("--pattern needs --format text, and no --key-separator")
            try:
                groups = re.compile(self.pattern).groupindex
            except (re.error, RecursionError, OverflowError) as error:
                raise InvalidConfigError(f"the pattern is not a regular expression: {error}") from None
            if not groups.keys() & set(PATTERN_GROUPS):
                text = "the pattern needs a group named key, value or timestamp, as in (?P<key>[^ ]+)"
                raise InvalidConfigError(text)
        if self.format == TEXT and self.fields:
            raise InvalidConfigError(NO_FIELDS)

    @property
    def fields(self) -> dict[str, str]:
        """The names of the fields by their roles: key, value, timestamp."""
        names = {"key": self.key, "value": self.value, "timestamp": self.timestamp}
        return {role: name for role, name in names.items() if name is not None}

    @property
    def skips_bad_lines(self) -> bool:
        return self.bad_lines == SKIP

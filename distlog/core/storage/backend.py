"""The values, writers, byte ranges and retries of all kinds of storage."""

from __future__ import annotations

import enum
import errno
import logging
import os
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import SystemRandom
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidConfigError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
)
from distlog.core.integers import MAX_LONG
from distlog.core.storage.parallel import in_parallel

if TYPE_CHECKING:
    from typing_extensions import Buffer, Self

#: The largest conditional put. From 100 MiB on, s3fs makes a multipart upload, which ignores the condition.
MAX_CONDITIONAL_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One listed object. `modified_ms` is by the store's clock, or MAX_LONG if the store does not report it."""

    name: str
    size: int
    modified_ms: int = field(default=MAX_LONG, compare=False)


#: The content of one folder, in any order: its objects, and the names of its folders.
Entries: TypeAlias = list[FileInfo | str]


@dataclass(frozen=True, slots=True)
class UnfinishedUpload:
    """An unfinished multipart upload; `started_ms` is by the store's clock."""

    name: str
    id: str
    started_ms: int


@dataclass(slots=True)
class PutTime:
    """Receives the store's time of a put-if-absent: 0 if unknown, or if only a retry succeeded."""

    time_ms: int = 0


@dataclass(slots=True)
class StorageCounters:
    """Requests, including retries (on a disk: opened files), and bytes. Not exact if threads share it."""

    gets: int = 0
    puts: int = 0
    lists: int = 0
    deletes: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class ObjectWriter(ABC):
    """Writes a new object; a `with` block closes it, or aborts it. A call may raise an earlier call's error."""

    written_bytes: int = 0

    @abstractmethod
    def write(self, data: Buffer) -> None:
        """Append `data`, whose buffer the caller may reuse afterwards."""

    def write_behind(self, data: Buffer) -> None:
        """Append `data`, which must not change until another call returns."""
        self.write(data)

    @abstractmethod
    def close(self) -> None:
        """Make the object durable and visible."""

    @abstractmethod
    def abort(self) -> None:
        """Delete the object, if possible; never raises, and does nothing after `close`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.abort()
            return
        try:
            self.close()
        except BaseException:
            self.abort()
            raise


def check_process(process: int, path: str) -> None:
    """Raise StorageError unless this is the process that started to write `path`."""
    if process != os.getpid():
        raise StorageError("cannot write after a fork: only the parent process can continue this file", file=path)


def byte_view(data: Buffer) -> memoryview:
    """Return the bytes of `data`, of any item type, as a flat view without a copy."""
    view = memoryview(data)
    if view.format == "B" and view.ndim == 1:
        return view
    return view.cast("B") if view.nbytes else memoryview(b"")


class Part(NamedTuple):
    """Bytes [begin, begin + size) of the object `name`; the whole object if `is_file`. Positions start at 0."""

    name: str
    begin: int
    size: int
    is_file: bool

    @classmethod
    def file(cls, name: str, size: int) -> Part:
        return cls(name, 0, size, is_file=True)

    def range(self, start: int, end: int) -> tuple[str, int, int]:
        return self.name, self.begin + start, self.begin + end

    @property
    def full_range(self) -> tuple[str, int, int]:
        return self.range(0, self.size)


def too_short_error(name: str, start: int, end: int) -> StorageError:
    text = "the file is shorter than expected: verify, then restore it from a copy"
    return StorageError(text, file=name, start=start, end=end)


#: Ranges with a smaller gap are merged: reading the gap costs less than a round trip.
MAX_GAP_BYTES = 64 * 1024
#: Ranges are not merged into larger ones, which threads could not read in parallel.
MAX_MERGED_BYTES = 8 * 1024 * 1024


def merge_ranges(ranges: Sequence[tuple[str, int, int]]) -> tuple[list[tuple[str, int, int]], list[int]]:
    """Merge close ranges (path, start, end). Returns the merged ones, and for each of `ranges` the index in these."""
    merged: list[tuple[str, int, int]] = []
    merged_indexes = [0] * len(ranges)
    for index in sorted(range(len(ranges)), key=ranges.__getitem__):
        path, start, end = ranges[index]
        last_path, last_start, last_end = merged[-1] if merged else (None, 0, 0)
        is_close = path == last_path and start - last_end <= MAX_GAP_BYTES
        if is_close and (end <= last_end or end - last_start <= MAX_MERGED_BYTES):
            merged[-1] = path, last_start, max(last_end, end)
        else:
            merged.append(ranges[index])
        merged_indexes[index] = len(merged) - 1
    return merged, merged_indexes


#: How long requests are retried. A time limit, since a number of retries would end during a short outage.
RETRY_TIMEOUT_S = 60.0
#: The same until the server has answered once, so that a typo in its name doesn't cost a minute.
FIRST_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 2.0

_log = logging.getLogger("distlog")

T = TypeVar("T")


class ErrorKind(enum.Enum):
    """The meaning of a storage client's error."""

    MISSING = "the object does not exist"
    REFUSED = "the store refuses the request, and would refuse a retry"
    LAPSED = "the credentials are no longer valid"
    PAST_THE_END = "the range starts past the object's last byte"
    UNCLEAR = "no answer, or an answer that may change, so a retry may succeed"


#: Random numbers for pauses; not by Python's generator, which the program may have seeded.
jitter = SystemRandom().random


class Deadline:
    """The time left for retries, and the pauses between them: random, up to 50 ms at first, doubling up to 2 s."""

    def __init__(
        self,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = jitter,
        min_pauses: int = 0,
    ) -> None:
        """Up to `min_pauses` pauses are allowed after the deadline, since one call may have used all the time."""
        self._clock, self._sleep, self._random, self._pauses_left = clock, sleep, random, min_pauses
        self._end_s = clock() + timeout_s
        self._max_pause_s = FIRST_PAUSE_S

    @property
    def has_max_pause(self) -> bool:
        return self._max_pause_s == MAX_PAUSE_S

    def pause(self) -> bool:
        """Sleep for a pause and return True, or return False if no time is left."""
        left_s = self._end_s - self._clock()
        if left_s <= 0 and self._pauses_left <= 0:
            return False
        self._pauses_left -= 1
        self._sleep(min(max(left_s, FIRST_PAUSE_S), self._random() * self._max_pause_s))
        self._max_pause_s = min(self._max_pause_s * 2, MAX_PAUSE_S)
        return True


class ErrorClassifier(ABC):
    """The meanings of the errors of a storage client."""

    @abstractmethod
    def kind(self, error: Exception) -> ErrorKind:
        """Return the kind of `error`."""

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """Return the text of `error`, without secrets."""

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        """Return the error to raise instead of `error`, whose text may have a secret."""
        if isinstance(error, (StorageError, InvalidConfigError)):
            return error
        text = f"cannot {action}: {self.describe(error)}"
        if isinstance(error, PermissionError):
            return StorageDeniedError(text, file=path)
        may_change = self.kind(error) is ErrorKind.UNCLEAR
        return (StorageError if may_change else StorageRefusedError)(text, file=path)


def retried(call: Callable[[], T], action: str, path: str, errors: ErrorClassifier, deadline: Deadline) -> T:
    """Return `call()`, repeated while its errors are unclear and time is left."""
    is_logged = False
    while True:
        try:
            return call()
        except Exception as error:  # noqa: PERF203
            kind = errors.kind(error)
            if kind is ErrorKind.MISSING:
                raise FileNotFoundError(errno.ENOENT, "the object does not exist", path) from None
            if kind is not ErrorKind.UNCLEAR or not deadline.pause():
                raise errors.failure(action, path, error) from None
            if deadline.has_max_pause and not is_logged:
                is_logged = True
                _log.warning("cannot %s %s, trying again: %s", action, path, errors.describe(error))


def resolve_put(
    create: Callable[[], bytes],
    read_back: Callable[[], bytes],
    path: str,
    errors: ErrorClassifier,
    deadline: Deadline,
) -> bytes:
    """Put an object if absent, and return the bytes stored at `path`: ours or another writer's.

    After an error of `create`, `read_back` reads the object. The error "it exists" may be about our own put, since
    responses get lost and clients retry. Raises StorageError if the put was refused, and CommitStateUnknownError if
    it may have happened. Expired credentials don't show that nothing was put, since the client may have retried.
    """
    may_have_landed = False
    while True:
        try:
            return create()
        except Exception as error:
            refusal = error if errors.kind(error) in (ErrorKind.MISSING, ErrorKind.REFUSED) else None
            may_have_landed = may_have_landed or refusal is None
        try:
            return read_back()
        except Exception as error:
            if refusal is not None and not may_have_landed:
                raise errors.failure("put", path, refusal) from None
            cannot_read_back = errors.kind(error) in (ErrorKind.REFUSED, ErrorKind.LAPSED)
            # a put that is refused now cannot show whether an earlier one succeeded
            if refusal is not None or cannot_read_back or not deadline.pause():
                raise CommitStateUnknownError(
                    f"unknown whether the storage wrote the file ({errors.describe(refusal or error)}): keep "
                    "all files that it names, and check again later",
                    file=path,
                ) from None


#: How many writers race for an object in an object store, and on a local disk, where links are atomic.
RACERS, LOCAL_RACERS = 6, 2


def check_one_wins(
    put: Callable[[bytes], bytes], delete: Callable[[], None], folder: str, *, racers: int = RACERS
) -> None:
    """Raise StorageError unless one of several puts wins, and a later put loses. Deletes the object at the end."""
    try:
        outcomes = in_parallel(put, [uuid.uuid4().bytes for _ in range(racers)])
        later_put = uuid.uuid4().bytes
        outcomes.append(put(later_put))
    except CommitStateUnknownError as error:
        # another error, since this one is about the test's object, and nothing of the caller was put
        text = f"nothing was written: unknown whether the storage supports conditional puts ({error.message})"
        raise StorageError(text, folder=folder) from None
    finally:
        try:
            delete()
        except StorageError as error:
            _log.warning("could not delete the test object in %s; vacuum will: %s", folder, error)
    if len(set(outcomes)) > 1 or later_put in outcomes:
        raise StorageError(
            "this storage ignores the condition of a put (If-None-Match: *), or lets several concurrent writers "
            "pass, so commits could be lost: use another storage, or a newer version",
            folder=folder,
            winners=len(set(outcomes)),
        )

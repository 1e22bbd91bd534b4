"""Finds out whether a put-if-absent keeps its promise: several puts of one name race, and exactly one may win."""

from __future__ import annotations

import enum
import errno
import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from random import SystemRandom
from typing import TypeVar

from distlog.core.errors import (
    CommitStateUnknownError,
    DistlogError,
    InvalidConfigError,
    StorageDeniedError,
    StorageError,
    StorageRefusedError,
)
from distlog.core.storage.parallel import in_parallel

#: A deadline ends the retries, not a count: a count would end them during a short outage.
RETRY_TIMEOUT_S = 60.0
#: Until a server has answered once: a typo in its name must not cost a minute.
FIRST_TIMEOUT_S = 5.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

_log = logging.getLogger("distlog")

T = TypeVar("T")


class ErrorKind(enum.Enum):
    """The meaning of a storage client's error for the object, and whether to retry."""

    MISSING = "the object does not exist"
    REFUSED = "refused, now and at a retry"
    LAPSED = "not allowed any more"
    PAST_THE_END = "the range starts past the object's last byte"
    UNCLEAR = "no answer, or one that may change"


#: Not Python's generator: programs with the same seed would retry in step, and our draws would change theirs.
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
        least: int = 0,
    ) -> None:
        """`least` is the number of pauses even without time left, for a call that used all of the time."""
        self._clock, self._sleep, self._random, self._least = clock, sleep, random, least
        self._end = clock() + timeout_s
        self._longest_s = FIRST_PAUSE_S

    @property
    def is_late(self) -> bool:
        """True if the pauses have reached the longest, some seconds after the first."""
        return self._longest_s == LONGEST_PAUSE_S

    def pause(self) -> bool:
        """Sleep for a pause and return True; return False at once when no time is left."""
        left_s = self._end - self._clock()
        if left_s <= 0 and self._least <= 0:
            return False
        self._least -= 1
        self._sleep(min(max(left_s, FIRST_PAUSE_S), self._random() * self._longest_s))
        self._longest_s = min(self._longest_s * 2, LONGEST_PAUSE_S)
        return True


class ErrorClassifier(ABC):
    """The meanings of the errors of a storage client."""

    @abstractmethod
    def kind(self, error: Exception) -> ErrorKind:
        """The kind of `error`."""

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """Return the text of `error`, without secrets."""

    def failure(self, action: str, path: str, error: Exception) -> DistlogError:
        """Return the error to raise instead of `error`, whose text may hold a secret."""
        if isinstance(error, (StorageError, InvalidConfigError)):
            return error
        text = f"cannot {action}: {self.describe(error)}"
        if isinstance(error, PermissionError):
            return StorageDeniedError(text, file=path)
        may_pass = self.kind(error) is ErrorKind.UNCLEAR
        return (StorageError if may_pass else StorageRefusedError)(text, file=path)


def retried(call: Callable[[], T], action: str, path: str, errors: ErrorClassifier, deadline: Deadline) -> T:
    """Return `call()`, repeated while its errors are unclear and time is left."""
    is_logged = False
    while True:
        try:
            return call()
        except Exception as error:  # noqa: PERF203 - to catch in the loop is what it is for
            kind = errors.kind(error)
            if kind is ErrorKind.MISSING:
                raise FileNotFoundError(errno.ENOENT, "the object does not exist", path) from None
            if kind is not ErrorKind.UNCLEAR or not deadline.pause():
                raise errors.failure(action, path, error) from None
            if deadline.is_late and not is_logged:
                is_logged = True
                _log.warning("cannot %s %s, trying again: %s", action, path, errors.describe(error))


def resolve_put(
    create: Callable[[], bytes],
    read_back: Callable[[], bytes],
    path: str,
    errors: ErrorClassifier,
    deadline: Deadline,
) -> bytes:
    """Resolve the outcome of a put-if-absent: return the bytes stored at `path`, ours or another writer's.

    After an error of `create`, `read_back` reads the object: "it exists" may answer our own write, since responses
    get lost and clients retry by themselves. If the object is missing, the same bytes are put again.

    Raises StorageError if the put was refused and cannot have happened, CommitStateUnknownError if it may have
    happened. An expired permission proves nothing: the client may have sent the put again, and only the second put
    was refused.
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
            blind = errors.kind(error) in (ErrorKind.REFUSED, ErrorKind.LAPSED)
            if refusal is not None or blind or not deadline.pause():
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
    """Raise StorageError unless one of several puts wins and a later put loses; then delete the object."""
    try:
        outcomes = in_parallel(put, [uuid.uuid4().bytes for _ in range(racers)])
        late = uuid.uuid4().bytes
        outcomes.append(put(late))
    except CommitStateUnknownError as error:
        # the error is about the test's object; nothing of the caller was put
        raise StorageError(
            f"nothing was written: unknown whether the storage supports conditional puts ({error.message})",
            folder=folder,
        ) from None
    finally:
        try:
            delete()
        except StorageError as error:
            _log.warning("could not delete the test object in %s; vacuum will: %s", folder, error)
    if len(set(outcomes)) > 1 or late in outcomes:
        raise StorageError(
            "this storage ignores the condition of a put (If-None-Match: *), or lets several concurrent writers "
            "pass, so commits could be lost: use another storage, or a newer version",
            folder=folder,
            winners=len(set(outcomes)),
        )

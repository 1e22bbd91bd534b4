"""Retries of storage requests, and the errors of failed requests."""

from __future__ import annotations

import enum
import errno
import logging
import time
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

#: How long requests are retried. A time limit, since a number of retries would end during a short outage.
RETRY_TIMEOUT_S = 60.0
#: The same until the server has first answered (see `ObjectStore.retried`): a typo in its name costs seconds.
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
        """Allow `min_pauses` pauses even after the deadline, since the first call may have used all the time."""
        self._clock, self._sleep, self._random, self._guaranteed_pauses = clock, sleep, random, min_pauses
        self._end_s = clock() + timeout_s
        self._max_pause_s = FIRST_PAUSE_S

    @property
    def has_max_pause(self) -> bool:
        return self._max_pause_s == MAX_PAUSE_S

    def pause(self) -> bool:
        """Sleep for a pause and return True, or return False if no time is left."""
        left_s = self._end_s - self._clock()
        if left_s <= 0 and self._guaranteed_pauses <= 0:
            return False
        self._guaranteed_pauses -= 1
        # a guaranteed pause sleeps up to FIRST_PAUSE_S even if no time is left
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
            if deadline.has_max_pause and not is_logged:  # short outages are not logged
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
    it may have happened. Expired credentials are not a refusal: before its last retry, the client may have put it.
    """
    may_have_landed = False
    while True:
        try:
            return create()
        except Exception as error:
            # MISSING refuses the put, since only the bucket or folder of a new object can be missing
            refusal = error if errors.kind(error) in (ErrorKind.MISSING, ErrorKind.REFUSED) else None
            may_have_landed = may_have_landed or refusal is None
        try:
            return read_back()
        except Exception as error:
            if refusal is not None and not may_have_landed:
                raise errors.failure("put", path, refusal) from None
            cannot_read_back = errors.kind(error) in (ErrorKind.REFUSED, ErrorKind.LAPSED)
            # A retry needs an unclear put and a read that may succeed later. The refusal of this put does not show
            # whether an earlier put succeeded. The object can be a commit, which names other files.
            if refusal is not None or cannot_read_back or not deadline.pause():
                raise CommitStateUnknownError(
                    f"unknown whether the storage wrote the file ({errors.describe(refusal or error)}): keep "
                    "all files that it names, and check again later",
                    file=path,
                ) from None

"""Trying again: until when, after which errors, and what a conditional put that got no clear answer came to.

Bounded by a deadline and never by a count, since a count gives up in the middle of a short outage.
"""

from __future__ import annotations

import enum
import errno
import random as random_source
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVar

from distlog.core.errors import CommitStateUnknownError, StorageError

RETRY_TIMEOUT_S = 60.0
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0

T = TypeVar("T")


class Verdict(enum.Enum):
    """What an error of a storage client says about the object and about trying again."""

    MISSING = "the object is not there"
    REFUSED = "the answer is no, and would be no again"
    LAPSED = "no longer allowed, though it may have been a moment ago"
    UNCLEAR = "no answer, or one that may change"


class Deadline:
    """Time that is left, and pauses on the way: random, up to 50 ms at first, doubling up to 2 s."""

    def __init__(
        self,
        timeout_s: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        random: Callable[[], float] = random_source.random,
    ) -> None:
        self._clock, self._sleep, self._random = clock, sleep, random
        self._end = clock() + timeout_s
        self._longest_s = FIRST_PAUSE_S

    def pause(self) -> bool:
        """Wait a little; False, at once, when no time is left."""
        left_s = self._end - self._clock()
        if left_s <= 0:
            return False
        self._sleep(min(left_s, self._random() * self._longest_s))
        self._longest_s = min(self._longest_s * 2, LONGEST_PAUSE_S)
        return True


class ErrorJudge(ABC):
    """How one kind of storage reads the errors of its client."""

    @abstractmethod
    def verdict(self, error: Exception) -> Verdict:
        """What `error` says about the object."""

    @abstractmethod
    def describe(self, error: Exception) -> str:
        """What `error` says to people, free of secrets."""

    def failure(self, action: str, path: str, error: Exception) -> StorageError:
        """The error to raise instead of `error`, which is dropped, since a client's own words may hold a secret."""
        return (
            error
            if isinstance(error, StorageError)
            else StorageError(f"cannot {action}: {self.describe(error)}", file=path)
        )


def retried(call: Callable[[], T], action: str, path: str, judge: ErrorJudge, deadline: Deadline) -> T:
    """`call()`, again while its errors are unclear and time is left.

    Raises FileNotFoundError when the object is missing, else StorageError.
    """
    while True:
        try:
            return call()
        except Exception as error:  # noqa: PERF203 - to catch in the loop is what it is for
            verdict = judge.verdict(error)
            if verdict is Verdict.MISSING:
                raise FileNotFoundError(errno.ENOENT, "no such object", path) from None
            if verdict is not Verdict.UNCLEAR or not deadline.pause():
                raise judge.failure(action, path, error) from None


def settle(
    create: Callable[[], bytes], read_back: Callable[[], bytes], path: str, judge: ErrorJudge, deadline: Deadline
) -> bytes:
    """Bring a put-if-absent to a certain end: the bytes that stand at `path`, ours or another's.

    `create` puts our bytes unless something is there, and returns them. After any error of it the object itself is
    asked, as "it exists" may be the echo of our own write: replies get lost, and clients send again on their own.
    If it is not there, the same bytes are put again.

    Raises StorageError when the put was refused and cannot have happened, CommitStateUnknownError when it may have.
    A lapsed permission proves nothing, as the client may have sent twice, and been refused only the second time.
    """
    may_have_landed = False
    while True:
        try:
            return create()
        except Exception as error:
            refusal = error if judge.verdict(error) in (Verdict.MISSING, Verdict.REFUSED) else None
            may_have_landed = may_have_landed or refusal is None
        try:
            return read_back()
        except Exception as error:
            if refusal is not None and not may_have_landed:
                raise judge.failure("put", path, refusal) from None
            blind = judge.verdict(error) in (Verdict.REFUSED, Verdict.LAPSED)
            if refusal is not None or blind or not deadline.pause():
                raise _unknown(path, refusal or error, judge) from None


def _unknown(path: str, error: Exception, judge: ErrorJudge) -> CommitStateUnknownError:
    return CommitStateUnknownError(
        f"the storage did not say whether the write landed ({judge.describe(error)}); "
        "keep the files that it names, and look again later",
        file=path,
    )

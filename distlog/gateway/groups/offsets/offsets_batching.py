"""Puts the records of calls into one writer, and tells each call when all of its records are durable."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from distlog.core.errors import DistlogError, InvalidRecordError, LeaderFencedError
from distlog.core.topics.writing.delivery import Delivery
from distlog.core.topics.writing.leadership import LedTopic
from distlog.core.topics.writing.writer import Writer
from distlog.gateway.groups.members.classic_group import Stored

_log = logging.getLogger("distlog.gateway")
_RECORD_OVERHEAD = 100
#: Bytes that may be on their way: so few that a writer has room for them, and `append` never waits.
_MAX_WAITING_BYTES = 8 << 20


@dataclass(slots=True, eq=False)
class Call:
    """Records of one group that are stored together, and who learns of that; `left` are still on their way."""

    done: Stored
    left: int
    size: int
    code: ErrorCode = ErrorCode.none


class OffsetsBatching:
    """A writer, and the calls whose records it has, by partition, in order.

    `tell` gets the calls that are over. It must not wait: who asks a writer that failed waits for it, too,
    maybe behind the lock of a group.
    """

    def __init__(self, topic: LedTopic, linger_ms: int, tell: Callable[[Sequence[Call]], None]) -> None:
        # the one keeps calls and records in the same order; the writer's thread takes the other alone
        self._order, self._lock = threading.RLock(), threading.Lock()
        self._calls, self._tell = dict[int, deque[Call]](), tell
        self._waiting_bytes = 0
        self.has_failed = False
        self._writer = Writer(topic, linger_ms=linger_ms, on_delivery=self._delivered)

    def append(
        self, partition: int, records: Sequence[tuple[bytes, bytes | None]], done: Stored, too_large: ErrorCode
    ) -> None:
        """Put records on their way; never waits, since so few may be on their way that the writer has room.

        `too_large` is told if they would never fit: to try again is of no use then.
        """
        size = sum(_RECORD_OVERHEAD + len(key) + len(value or b"") for key, value in records)
        call = Call(done, len(records), size)
        with self._order:
            if not self._taken(partition, call, too_large):
                self._tell([call])
                return
            try:
                for key, value in records:
                    self._writer.append(value, key=key, partition=partition)
            except InvalidRecordError as error:
                if not self._taken_back(partition, call, records, too_large):
                    self._fail(error)
            except DistlogError as error:
                self._fail(error)

    def _taken_back(
        self, partition: int, call: Call, records: Sequence[tuple[bytes, bytes | None]], too_large: ErrorCode
    ) -> bool:
        """Refuse a call whose only record does not fit: the writer did not take it, and goes on."""
        with self._lock:
            if len(records) != 1 or self.has_failed:
                return False
            self._calls[partition].remove(call)
            self._waiting_bytes -= call.size
            call.code = too_large
        self._tell([call])
        return True

    def _taken(self, partition: int, call: Call, too_large: ErrorCode) -> bool:
        with self._lock:
            if call.size > _MAX_WAITING_BYTES:
                call.code = too_large
                return False
            if self.has_failed or self._waiting_bytes + call.size > _MAX_WAITING_BYTES:
                call.code = ErrorCode.coordinator_load_in_progress
                return False
            # it stands in the queue first: where no thread can be started, the writer's `append` delivers
            self._calls.setdefault(partition, deque()).append(call)
            self._waiting_bytes += call.size
            return True

    def _delivered(self, delivery: Delivery) -> None:
        if delivery.error is not None:
            self._fail(delivery.error)
            return
        with self._lock:
            over = self._counted(self._calls.get(delivery.partition or 0, deque()), delivery.record_count)
        self._tell(over)

    def _counted(self, calls: deque[Call], left: int) -> list[Call]:
        over = []
        while left and calls:
            taken = min(left, calls[0].left)
            calls[0].left -= taken
            left -= taken
            if calls[0].left == 0:
                self._waiting_bytes -= calls[0].size
                over.append(calls.popleft())
        return over

    def _fail(self, error: BaseException) -> None:
        """All calls fail, since a writer that failed keeps nothing more; some may be durable all the same."""
        with self._lock:
            if not self.has_failed:
                _log.error("groups were not stored: %s", error)
            self.has_failed = True
            over = [call for calls in self._calls.values() for call in calls]
            self._calls.clear()
            is_fenced = isinstance(error, LeaderFencedError)
            for call in over:
                call.code = ErrorCode.not_coordinator if is_fenced else ErrorCode.coordinator_not_available
        self._tell(over)

    def settle(self) -> None:
        """Have everything delivered that is on its way, or fail."""
        with suppress(DistlogError):
            self._writer.flush()

    def close(self) -> None:
        """Have everything delivered; a writer that failed has told all its calls already."""
        with suppress(DistlogError):
            self._writer.close()

"""Fetch sessions (KIP-227): a client names its partitions once, and then only what changes; so does the answer."""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from distlog.core.paths import LONGEST_TOPIC_NAME
from distlog.gateway.protocol.messages import ErrorCode

#: A topic's name or id, and the number of a partition.
FetchPlace = tuple[str | uuid.UUID, int]
#: Kafka's `max.incremental.fetch.session.cache.slots`, and how long an unused session keeps its slot from others.
_SLOTS, _KEPT_S = 1000, 120.0
#: The partitions of all sessions; one client has half of what is left at the most.
_MOST_PARTITIONS = 200_000
_LARGEST_ID = (1 << 31) - 1
#: The epochs of a fetch without a session, and of one that begins a session.
_FINAL, _FIRST = -1, 0


class FetchSessionError(Exception):
    """A fetch in a session that is not there, or not at this point; its client begins anew."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of a client's session, as it wants them, in the order in which they are read.

    `known_bounds` has the bounds of a log that the client knows. Its lock is held while it is changed.
    """

    id: int
    owner: Hashable
    has_ids: bool
    epoch: int = 1
    used_s: float = 0.0
    wanted: OrderedDict[FetchPlace, Any] = field(default_factory=OrderedDict)
    known_bounds: dict[FetchPlace, tuple[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tells(self, place: FetchPlace, bounds: tuple[int, int], size: int, *, is_error: bool) -> bool:
        """True if the answer must have a partition: with records, an error, or bounds that the client does not know.

        The next answer begins with other partitions than one with records, so that each gets its turn.
        """
        if place not in self.wanted:
            return size > 0
        if size:
            self.wanted.move_to_end(place)
        is_new = self.known_bounds.get(place) != bounds
        if is_error:
            self.known_bounds.pop(place, None)
        else:
            self.known_bounds[place] = bounds
        return is_error or size > 0 or is_new


class FetchContext:
    """The partitions of one fetch; `session` is None without one, and `is_whole` if all of them are answered."""

    def __init__(
        self, partitions: Collection[tuple[FetchPlace, Any]], session: FetchSession | None, *, is_whole: bool
    ) -> None:
        self.partitions, self.session, self.is_whole = partitions, session, is_whole

    @property
    def session_id(self) -> int:
        """The id of the session in the answer; 0 for none."""
        return self.session.id if self.session else 0


class FetchSessions:
    """The sessions of all clients; for many threads. `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._of = Counter[Hashable]()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        owner: Hashable,
        session_id: int,
        epoch: int,
        asked: Iterable[tuple[FetchPlace, Any]],
        forgotten: Iterable[FetchPlace],
        *,
        has_ids: bool,
    ) -> FetchContext:
        """The partitions that a fetch is about, each once: the named ones, or all of its session.

        Raises FetchSessionError.
        """
        if epoch in (_FINAL, _FIRST):
            if session_id:
                self._close(owner, session_id)
            partitions = dict(asked)
            session = self._opened(owner, partitions, has_ids) if epoch == _FIRST else None
            return FetchContext(partitions.items(), session, is_whole=True)
        session = self._found(owner, session_id)
        with session.lock:
            if session.epoch != epoch:
                raise FetchSessionError(ErrorCode.invalid_fetch_session_epoch)
            if session.has_ids != has_ids:
                raise FetchSessionError(ErrorCode.fetch_session_topic_id_error)
            before = len(session.wanted)
            for place in forgotten:
                session.wanted.pop(place, None)
                session.known_bounds.pop(place, None)
            session.wanted.update((place, each) for place, each in asked if _may_be(place))
            session.epoch = epoch % _LARGEST_ID + 1
            self._count(session, len(session.wanted) - before)
            return FetchContext(list(session.wanted.items()), session, is_whole=False)

    def _found(self, owner: Hashable, session_id: int) -> FetchSession:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None or session.owner != owner:
                raise FetchSessionError(ErrorCode.fetch_session_id_not_found)
            session.used_s = self._clock()
            self._sessions.move_to_end(session_id)
            return session

    def _opened(self, owner: Hashable, partitions: dict[FetchPlace, Any], has_ids: bool) -> FetchSession | None:
        """A new session; None if there is no room for it, and then its client sends whole fetches."""
        with self._lock:
            if not partitions or not all(map(_may_be, partitions)) or not self._has_room(owner, len(partitions)):
                return None
            while (id := random.randint(1, _LARGEST_ID)) in self._sessions:
                pass
            session = FetchSession(id, owner, has_ids, used_s=self._clock(), wanted=OrderedDict(partitions))
            self._sessions[id] = session
            self._of[owner] += len(partitions)
            return session

    def _has_room(self, owner: Hashable, count: int) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is not None and len(self._sessions) >= _SLOTS:
            if self._clock() - oldest.used_s < _KEPT_S:
                return False
            self._remove(oldest)
        return self._is_fair(owner, count)

    def _is_fair(self, owner: Hashable, more: int) -> bool:
        """True if a client has at most half of what others leave, with so many partitions more."""
        return self._of[owner] + more <= (_MOST_PARTITIONS - self._of.total() + self._of[owner]) // 2

    def _count(self, session: FetchSession, more: int) -> None:
        with self._lock:
            if session.id not in self._sessions:
                return
            self._of[session.owner] += more
            if more > 0 and not self._is_fair(session.owner, 0):
                # the client learns it at its next fetch, and begins anew
                self._remove(session)

    def _close(self, owner: Hashable, session_id: int) -> None:
        with self._lock:
            session = self._sessions.get(session_id)
            if session is not None and session.owner == owner:
                self._remove(session)

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.id]
        self._of[session.owner] -= len(session.wanted)
        self._of += Counter()


def _may_be(place: FetchPlace) -> bool:
    """False for a name that no topic has, and that would take memory."""
    return not isinstance(place[0], str) or len(place[0]) <= LONGEST_TOPIC_NAME

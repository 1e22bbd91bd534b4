"""The topics that groups subscribe to, as the coordinator knows them: members must not wait for storage (KIP-848)."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.core.storage.parallel import in_parallel
from distlog.gateway.topics.topic_index import TopicSummary


class SubscribedTopics:
    """Topics by name, as of the last look. `find` returns a topic or raises TopicNotFoundError."""

    def __init__(self, find: Callable[[str], TopicSummary], names: Callable[[], Iterable[str]]) -> None:
        self._find, self._names = find, names
        self._summaries: dict[str, TopicSummary | None] = {}
        self._matching: dict[str, frozenset[str]] = {}
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_refreshing = False

    def summary(self, name: str) -> TopicSummary | None:
        return self._summaries.get(name)

    def matching(self, pattern: str) -> Iterable[str]:
        return self._matching.get(pattern, ())

    def has_read(self, names: Collection[str], patterns: Collection[str]) -> bool:
        """True if all names and patterns were read, including missing topics."""
        summaries, matching = self._summaries, self._matching
        if not all(pattern in matching for pattern in patterns):
            return False
        return all(name in summaries for name in names) and all(
            name in summaries for pattern in patterns for name in matching[pattern]
        )

    def when_known(self, names: Collection[str], patterns: Collection[str], work: Callable[[], None]) -> None:
        """Do `work` when these topics are known, or cannot be read: now, or later in another thread."""
        if self.has_read(names, patterns):
            work()
            return

        def later() -> None:
            self._read([*names], [*patterns], is_new=True)
            work()

        self._begin(later)

    def refresh(self, names: Collection[str], patterns: Collection[str]) -> None:
        """Read these topics again in a thread, and forget all others; at most one refresh is queued."""

        def again() -> None:
            self._is_refreshing = False
            self._read([*names], [*patterns], is_new=False)
            used = {*names, *(name for pattern in patterns for name in self.matching(pattern))}
            self._summaries = {name: summary for name, summary in self._summaries.items() if name in used}
            self._matching = {pattern: self._matching[pattern] for pattern in patterns if pattern in self._matching}

        if (names or patterns or self._summaries or self._matching) and not self._is_refreshing:
            self._is_refreshing = True
            self._begin(again)

    def _read(self, names: Collection[str], patterns: Collection[str], *, is_new: bool) -> None:
        """Read topics; one that cannot be read keeps its former summary."""
        topics = set(names)
        try:
            if not (is_new and self._matching.keys() >= set(patterns)):
                listed = sorted(self._names()) if patterns else []
                self._matching.update({pattern: matches(pattern, listed) for pattern in patterns})
        except Exception as error:
            # no error may end the refreshes
            _log.warning("the topics of groups cannot be listed: %s", error)
        topics.update(name for pattern in patterns for name in self.matching(pattern))
        in_parallel(self._read_topic, sorted(topics - self._summaries.keys() if is_new else topics))

    def _read_topic(self, name: str) -> None:
        try:
            self._summaries[name] = self._find(name)
        except (InvalidTopicError, TopicNotFoundError):
            self._summaries[name] = None
        except Exception as error:
            _log.debug("cannot read topic %s of a group: %s", name, error)

    def stop(self) -> None:
        with self._lock:
            thread = self._thread
        if thread is not None:
            self._waiting.put(None)
            thread.join()

    def _begin(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="group-topics", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            try:
                work()
            except Exception:  # noqa: PERF203 - the next read runs, too
                _log.exception("reading the topics of groups failed")


_log = logging.getLogger("distlog.gateway")


def matches(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """Match whole names with a regular expression of RE2, Kafka's choice too; ValueError if it is none."""
    # without any value the expression would not be looked at
    listed = pa.array(["", *names], pa.string())
    matching = listed.filter(pc.match_substring_regex(listed, pattern=f"^(?:{pattern})$"))
    return frozenset(matching.to_pylist()) - {""}

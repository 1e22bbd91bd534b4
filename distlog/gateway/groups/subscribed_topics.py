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

_log = logging.getLogger("distlog.gateway")


def matches(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that a regular expression of RE2 matches as a whole; ValueError if it is none.

    RE2 takes linear time, whatever a client asks for, and is Kafka's choice, too.
    """
    # without any value the expression would not be looked at
    listed = pa.array(["", *names], pa.string())
    found = listed.filter(pc.match_substring_regex(listed, pattern=f"^(?:{pattern})$"))
    return frozenset(found.to_pylist()) - {""}


class SubscribedTopics:
    """Topics by name, as of the last look. `find` gives a topic or raises TopicNotFoundError, `names` all names."""

    def __init__(self, find: Callable[[str], TopicSummary], names: Callable[[], Iterable[str]]) -> None:
        self._find, self._names = find, names
        self._facts: dict[str, TopicSummary | None] = {}
        self._matching: dict[str, frozenset[str]] = {}
        self._waiting: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._looks_again = False

    def facts(self, name: str) -> TopicSummary | None:
        """The topic; None if there is none, or it is not known yet."""
        return self._facts.get(name)

    def matching(self, pattern: str) -> Iterable[str]:
        """The names of the topics that a regular expression matches."""
        return self._matching.get(pattern, ())

    def know(self, names: Collection[str], patterns: Collection[str]) -> bool:
        """True if all of these were looked at, also topics that are not there."""
        found, matching = self._facts, self._matching
        if not all(each in matching for each in patterns):
            return False
        return all(each in found for each in names) and all(
            each in found for one in patterns for each in matching[one]
        )

    def when_known(self, names: Collection[str], patterns: Collection[str], work: Callable[[], None]) -> None:
        """Do `work` when these topics are known: now, or in another thread behind a look at the storage.

        It is done also if the look fails, and they are not known.
        """
        if self.know(names, patterns):
            work()
            return

        def later() -> None:
            self._look([*names], [*patterns], is_new=True)
            work()

        self._begin(later)

    def look(self, names: Collection[str], patterns: Collection[str]) -> None:
        """Look again at these topics, and forget all others. Returns at once; nothing is done if a look waits."""

        def again() -> None:
            self._looks_again = False
            self._look([*names], [*patterns], is_new=False)
            used = {*names, *(name for each in patterns for name in self.matching(each))}
            self._facts = {name: each for name, each in self._facts.items() if name in used}
            self._matching = {each: self._matching[each] for each in patterns if each in self._matching}

        if (names or patterns or self._facts or self._matching) and not self._looks_again:
            self._looks_again = True
            self._begin(again)

    def _look(self, names: Collection[str], patterns: Collection[str], *, is_new: bool) -> None:
        """Look at topics; one that cannot be looked at stays as it was."""
        wanted = set(names)
        try:
            if not (is_new and self._matching.keys() >= set(patterns)):
                listed = sorted(self._names()) if patterns else []
                self._matching.update({each: matches(each, listed) for each in patterns})
        except Exception as error:
            # whatever it is, it must not be the last look
            _log.warning("the topics of groups cannot be listed: %s", error)
        wanted.update(name for each in patterns for name in self.matching(each))
        in_parallel(self._look_at, sorted(wanted - self._facts.keys() if is_new else wanted))

    def _look_at(self, name: str) -> None:
        try:
            self._facts[name] = self._find(name)
        except (InvalidTopicError, TopicNotFoundError):
            self._facts[name] = None
        except Exception as error:
            _log.debug("cannot look at topic %s of a group: %s", name, error)

    def stop(self) -> None:
        """End the thread, behind all looks that were asked for."""
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
            except Exception:  # noqa: PERF203 - the next look is made, too
                _log.exception("a look at the topics of groups failed")

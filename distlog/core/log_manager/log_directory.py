"""One root and the topics that are loaded from it. A root that does not answer is offline, and is tried again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from distlog.core import paths
from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.core.locks import ProcessLock
from distlog.core.log_manager.task_run import TaskRun
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.topic_handle import TopicHandle, topic_log
from distlog.core.topics.topic import Topic

#: How long to wait for the first load before a look whether everything ends.
_PATIENCE_S = 0.5


class FoundTopic(NamedTuple):
    """A topic as it was found below a root. If it was dropped, vacuum deletes its files."""

    storage: Storage
    log: CommitLog
    snapshot: Snapshot


class LogDirectory:
    """A root: its loaded topics, and those that were dropped, by the name of their folder. Safe between threads.

    `defaults` are settings for what a topic does not set itself. `clock` gives ms since 1970. Work on many topics
    ends early when `is_stopping` says so.
    """

    def __init__(
        self,
        storage: Storage,
        defaults: Mapping[str, object],
        clock: Callable[[], int],
        is_stopping: Callable[[], bool],
    ) -> None:
        self.storage, self.clock, self.is_stopping = storage, clock, is_stopping
        self._defaults = defaults
        self._lock = ProcessLock()
        self._topics: dict[str, Topic] = {}
        self._dropped: dict[str, FoundTopic] = {}
        self.is_offline = False
        self._loaded = threading.Event()

    @property
    def url(self) -> str:
        """The root's address, without credentials."""
        return self.storage.url

    @property
    def topics(self) -> dict[str, Topic]:
        """The loaded topics, by name."""
        with self._lock:
            return dict(sorted(self._topics.items()))

    @property
    def dropped(self) -> dict[str, FoundTopic]:
        """The dropped topics, by name."""
        with self._lock:
            return dict(sorted(self._dropped.items()))

    def wait_until_loaded(self) -> bool:
        """Wait for the first `load_logs`, of another thread; False if this ends before."""
        while not self._loaded.wait(_PATIENCE_S):
            if self.is_stopping():
                return False
        return True

    def load_logs(self, run: TaskRun) -> None:
        """Find the topics below the root: load new ones, in parallel, and let go of those that are gone."""
        try:
            self._load_logs(run)
        finally:
            self._loaded.set()

    def _load_logs(self, run: TaskRun) -> None:
        try:
            names = {name for name in self.storage.list_folders() if _may_be_topic(name)}
        except Exception as error:
            self.is_offline = True
            run.failed(self.url, error)
            return
        self.is_offline = False
        if not names and not self.storage.is_there():
            run.failed(self.url, "nothing is here yet: check the address, or create a topic below it")
        known = self.topics
        for name in (known.keys() | self.dropped.keys()) - names:
            self._forget(name)
        in_parallel(partial(self._refresh, run, known), known.keys() & names)
        loaded = in_parallel(partial(self._load, run), names - self.topics.keys())
        run.add(loaded_topics=sum(loaded))

    def each_topic(self, run: TaskRun, work: Callable[[Topic], object]) -> None:
        """Do `work` on each topic; a failure is noted, and the others go on. A dropped topic is let go of."""
        for name, topic in self.topics.items():
            if self.is_stopping():
                return
            self.attempt(run, name, topic, work)

    def attempt(self, run: TaskRun, name: str, topic: Topic, work: Callable[[Topic], object]) -> None:
        """Do `work` on one topic; see `each_topic`."""
        try:
            work(topic)
        except TopicNotFoundError:
            self._forget(name, topic)
        except Exception as error:
            run.failed(topic.url, error)

    def find(self, names: Iterable[str]) -> list[Topic]:
        """The loaded topics with these names or URLs."""
        wanted = set(names)
        return [topic for name, topic in self.topics.items() if name in wanted or topic.url in wanted]

    def _refresh(self, run: TaskRun, known: Mapping[str, Topic], name: str) -> None:
        self.attempt(run, name, known[name], Topic.refresh)

    def _load(self, run: TaskRun, name: str) -> bool:
        """Load what has this name, if it is a topic; returns whether there is one."""
        storage = self.storage.child(name)
        try:
            log = topic_log(storage, self.clock, engine="LogManager", defaults=self._defaults)
            snapshot = log.load(include_dropped=True)
        except TopicNotFoundError:
            self._forget(name)  # a folder of something else
        except Exception as error:
            run.failed(storage.url, error)
        else:
            self._keep(name, FoundTopic(storage, log, snapshot))
            return not snapshot.dropped
        return False

    def _keep(self, name: str, found: FoundTopic) -> None:
        storage, log, snapshot = found
        with self._lock:
            self._dropped.pop(name, None)
            if snapshot.dropped:
                self._dropped[name] = found
            else:
                self._topics[name] = Topic(TopicHandle.of(storage, snapshot.name, log, self.clock), snapshot)

    def _forget(self, name: str, topic: Topic | None = None) -> None:
        """Let go of what has this name; with `topic`, only if it is still this one."""
        with self._lock:
            if topic is None or self._topics.get(name) is topic:
                self._topics.pop(name, None)
                self._dropped.pop(name, None)


def _may_be_topic(name: str) -> bool:
    try:
        return bool(paths.check_topic_name(name)) and name not in (paths.COMMITS_DIR, paths.GROUPS_DIR)
    except InvalidTopicError:
        return False

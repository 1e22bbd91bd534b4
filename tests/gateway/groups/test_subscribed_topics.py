"""The coordinator's view of topics: refreshed by a thread, and kept while the storage fails."""

from __future__ import annotations

import threading

from waiting import until

from distlog.core.errors import InvalidTopicError, StorageError, TopicNotFoundError
from distlog.gateway.groups.consumer_group import SubscribedTopics
from distlog.gateway.topics.topic_index import TopicSummary


class Root:
    def __init__(self) -> None:
        self.partitions, self.fails, self.looks = {"clicks": 1, "clocks": 2}, False, list[str]()

    def find(self, name: str) -> TopicSummary:
        self.looks.append(name)
        if self.fails:
            raise StorageError("the storage does not answer")
        if "/" in name:
            raise InvalidTopicError("a topic cannot have this name")
        if name not in self.partitions:
            raise TopicNotFoundError("the topic does not exist")
        return TopicSummary(name, "id", self.partitions[name])

    def names(self) -> list[str]:
        if self.fails:
            raise StorageError("the storage does not answer")
        return [*self.partitions]


def read_topics(topics: SubscribedTopics, names: list[str], patterns: list[str]) -> str:
    results, threads = threading.Event(), list[str]()
    topics.when_known(names, patterns, lambda: (threads.append(threading.current_thread().name), results.set())[0])
    assert results.wait(120)
    return threads[0]


def test_a_refresh_shows_changes_and_forgets_unused_topics() -> None:
    root = Root()
    topics = SubscribedTopics(root.find, root.names)
    read_topics(topics, ["clicks"], ["clo.*"])
    root.partitions = {"clicks": 5, "clouds": 1}
    topics.refresh(["clicks"], ["clo.*"])
    until(
        lambda: topics.summary("clouds") is not None and topics.summary("clicks") == TopicSummary("clicks", "id", 5)
    )
    assert sorted(topics.matching("clo.*")) == ["clouds"]
    topics.refresh([], [])
    until(lambda: not topics.has_read(["clicks"], []))
    assert not topics.has_read([], ["clo.*"])
    read_topics(topics, [], ["none.*"])
    topics.refresh([], [])
    until(lambda: not topics.has_read([], ["none.*"]))
    topics.stop()


def test_known_topics_stay_while_the_storage_fails() -> None:
    root = Root()
    topics = SubscribedTopics(root.find, root.names)
    read_topics(topics, ["clicks"], [])
    root.fails = True
    topics.refresh(["clicks"], ["c.*"])
    read_topics(topics, ["clocks"], ["c.*"])
    assert topics.has_read(["clicks"], [])
    assert topics.summary("clicks") == TopicSummary("clicks", "id", 1)
    assert not topics.has_read(["clocks"], [])
    assert not topics.has_read([], ["c.*"])
    root.fails = False
    read_topics(topics, ["clocks"], ["c.*"])
    assert topics.has_read(["clocks"], ["c.*"])
    topics.stop()


def test_refreshes_do_not_queue_up_and_missing_topics_are_known() -> None:
    root, held = Root(), threading.Event()
    topics = SubscribedTopics(root.find, root.names)
    assert read_topics(topics, ["clicks", "no/topic"], []) == "group-topics"
    assert topics.has_read(["no/topic"], [])
    topics.when_known(["clocks"], [], held.wait)
    for _ in range(50):
        topics.refresh(["clicks"], [])
    held.set()
    read_topics(topics, ["another"], [])
    assert root.looks.count("clicks") == 2
    topics.refresh(["clicks"], [])
    read_topics(topics, ["fourth"], [])
    assert root.looks.count("clicks") == 3
    topics.stop()

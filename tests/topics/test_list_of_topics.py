"""A list of the topics of a root: its content, and its number of requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from addresses import Address
from fsspec.implementations.memory import MemoryFileSystem

import distlog
from distlog.core import paths
from distlog.core.commits import snapshot_loader
from distlog.core.config import TopicConfig
from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.core.segments.segment_reader import topic_log
from distlog.core.storage.storage import Storage


def test_the_topics_of_a_root_are_opened_and_other_folders_left_out(storage_url: Address) -> None:
    names = ["b", "a", "gone"]
    for number, name in enumerate(names):
        distlog.create(f"{storage_url.url}/{name}", number + 1, storage_options=storage_url.options)
    distlog.open(f"{storage_url.url}/gone", storage_options=storage_url.options).drop()
    root = Storage(*storage_url)
    root.put("no topic/a file", b"")
    root.put("also-none/_commits/a file", b"")
    topic_log(root.child("a/inner")).create(1, TopicConfig())
    topics = distlog.topics(storage_url.url, storage_options=storage_url.options)
    assert [(topic.name, topic.partitions) for topic in topics] == [("a", 2), ("b", 1)]
    result = topics[0].append([{"value": b"v"}])
    assert topics[0].refresh().scan().count() == result.record_count == 1


def test_a_list_takes_two_requests_for_each_new_topic(memory_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        distlog.create(f"{memory_url.url}/topic-{number}")
    requests = Counter[str]()

    def count(name: str) -> None:
        real = getattr(MemoryFileSystem, name)

        def counted(*arguments: Any, **named: Any) -> Any:
            requests.update([name])
            return real(*arguments, **named)

        monkeypatch.setattr(MemoryFileSystem, name, counted)

    for name in ("ls", "find", "cat_file", "open"):
        count(name)
    assert len(distlog.topics(memory_url.url)) == 20
    assert requests == {"cat_file": 20, "ls": 21}


def test_a_folder_with_an_invalid_name_is_left_out(memory_url: Address) -> None:
    distlog.create(f"{memory_url.url}/a")
    root = Storage(*memory_url)
    for name in ("what?", "..", "a%20b"):
        root.put(f"{name}/a file", b"")
    assert [topic.name for topic in distlog.topics(memory_url.url)] == ["a"]


@pytest.fixture
def closed_url(memory_url: Address, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the root of a topic, and of two folders that this process may not read."""
    topic_log(Storage(*memory_url).child("a")).create(1, TopicConfig())
    real = MemoryFileSystem.ls

    def ls(client: MemoryFileSystem, path: str, *arguments: Any, **named: Any) -> Any:
        if path.rstrip("/").endswith(("/lost+found", "/closed")):
            raise PermissionError(path)
        return real(client, path, *arguments, **named)

    monkeypatch.setattr(MemoryFileSystem, "ls", ls)
    Storage(*memory_url).put("lost+found/a file", b"")
    Storage(*memory_url).put("closed/a file", b"")
    return memory_url.url


def test_an_unreadable_folder_without_a_topic_name_is_ignored(closed_url: str) -> None:
    assert [topic.name for topic in distlog.topics(closed_url)] == ["a"]


def test_the_topics_next_to_an_unreadable_folder_are_named(closed_url: str) -> None:
    with pytest.raises(InvalidTopicError, match=r"this folder holds topics.*topics=a"):
        distlog.create(closed_url)
    with pytest.raises(TopicNotFoundError, match="a folder of topics: add the name of one: a "):
        distlog.open(closed_url)


def test_the_error_of_a_damaged_topic_names_it(storage_url: Address) -> None:
    for name in ("a", "b", "c"):
        distlog.create(f"{storage_url.url}/{name}", storage_options=storage_url.options)
    Storage(*storage_url).put(f"b/{paths.commit_file(0)}", b"{}")
    with pytest.raises(distlog.CorruptMetadataError, match="topic=b") as caught:
        distlog.topics(storage_url.url, storage_options=storage_url.options)
    assert caught.value.details["file"] == paths.commit_file(0)


def test_the_topics_next_to_a_damaged_one_are_opened(storage_url: Address) -> None:
    for name in ("a", "b", "c"):
        distlog.create(f"{storage_url.url}/{name}", storage_options=storage_url.options)
    Storage(*storage_url).put(f"b/{paths.commit_file(0)}", b"{}")
    errors: dict[str, distlog.DistlogError] = {}
    topics = distlog.topics(storage_url.url, storage_url.options, errors)
    assert [topic.name for topic in topics] == ["a", "c"]
    assert [(name, type(error), error.details["topic"]) for name, error in errors.items()] == [
        ("b", distlog.CorruptMetadataError, "b")
    ]


def test_a_store_that_does_not_answer_is_not_a_damaged_topic(
    memory_url: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    distlog.create(f"{memory_url.url}/a")

    def silent(*_: object) -> None:
        raise distlog.StorageError("no answer")

    monkeypatch.setattr(Storage, "list", silent)
    monkeypatch.setattr(Storage, "list_after", silent)
    with pytest.raises(distlog.StorageError, match="no answer"):
        distlog.topics(memory_url.url, errors={})


def test_a_topic_of_many_commits_is_listed_as_it_is_opened(
    memory_url: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_loader, "ONE_PAGE", 3)
    topic = distlog.create(f"{memory_url.url}/a")
    for _ in range(6):
        topic.append([{"value": b"v"}])
    (listed,) = distlog.topics(memory_url.url)
    assert listed.snapshot == distlog.open(topic.url).snapshot
    assert listed.version == 6

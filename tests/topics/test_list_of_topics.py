"""A list of the topics of a root: which there are, and how many requests it takes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from conftest import Address

import distlog
from distlog.core.storage.storage import Storage, StorageCounters


def test_the_topics_of_a_root_are_opened_and_other_folders_left_out(storage_url: Address) -> None:
    names = ["b", "a", "gone"]
    for number, name in enumerate(names):
        distlog.create(f"{storage_url.url}/{name}", number + 1, storage_options=storage_url.options)
    distlog.open(f"{storage_url.url}/gone", storage_options=storage_url.options).drop()
    root = Storage(*storage_url)
    root.put("no topic/a file", b"")
    root.put("also-none/_commits/a file", b"")
    with suppress(distlog.TopicExistsError):
        distlog.create(f"{storage_url.url}/a/inner", storage_options=storage_url.options)
    found = distlog.topics(storage_url.url, storage_options=storage_url.options)
    assert [(topic.name, topic.partitions) for topic in found] == [("a", 2), ("b", 1)]
    result = found[0].append([{"value": b"v"}])
    assert found[0].refresh().scan().count() == result.record_count == 1


def test_a_list_takes_two_requests_for_each_new_topic(memory_url: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        distlog.create(f"{memory_url.url}/topic-{number}")
    counters, real = list[StorageCounters](), Storage.__init__

    def counted(self: Storage, *arguments: Any, **named: Any) -> None:
        real(self, *arguments, **named)
        counters.append(self.counters)

    monkeypatch.setattr(Storage, "__init__", counted)
    assert len(distlog.topics(memory_url.url)) == 20
    different = {id(each): each for each in counters}.values()
    assert sum(each.gets for each in different) == 20
    # and one of the root
    assert sum(each.lists for each in different) == 21

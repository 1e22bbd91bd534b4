"""A topic has the name of its folder; a copied folder keeps the id of the original until it gets its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from addresses import Address
from copied_topics import copy_files, copy_folder, move_folder, topic_at
from topics import NOW, values

import distlog
from distlog.core.commits.checkpoint import write as write_checkpoint
from distlog.core.errors import CommitConflictError, TopicIdWarning, TopicNotFoundError
from distlog.core.read.consumer_group import carry_over_groups
from distlog.core.storage.storage import Storage

COPY = r"backup has the topic id of clicks, since one is a copy.*distlog alter URL --new-id"


@pytest.fixture
def root(storage_url: Address) -> Address:
    """Return a root with the topic `clicks` of three records, and a copy of its folder named `backup`."""
    topic = distlog.create(f"{storage_url.url}/clicks", 2, storage_options=storage_url.options)
    topic.append(values(range(2)), partition=0, app_id="load", batch_id=1)
    with topic.writer() as writer:
        writer.append(b"v2", partition=1, timestamp=NOW)
    with topic.consume(start=distlog.EARLIEST, group="g", timeout=0) as consumer:
        for _ in consumer:
            consumer.commit()
    copy_folder(storage_url, "clicks", "backup")
    return storage_url


def read(root: Address, name: str) -> list[bytes]:
    return topic_at(root, name).scan(columns=["value"]).to_table()["value"].to_pylist()


def test_a_topic_has_the_name_of_its_folder(root: Address) -> None:
    move_folder(root, "clicks", "views")
    topic = topic_at(root, "views")
    assert topic.name == "views"
    topic.append(values([3]), partition=0)
    assert sorted(read(root, "views")) == [b"v0", b"v1", b"v2", b"v3"]
    assert topic.verify().ok


def test_a_list_of_topics_names_a_copy(root: Address) -> None:
    with pytest.warns(TopicIdWarning, match=COPY):
        topics = distlog.topics(*root)
    assert [topic.name for topic in topics] == ["backup", "clicks"]


def test_without_the_original_each_copy_is_named(root: Address) -> None:
    move_folder(root, "clicks", "views")
    with pytest.warns(TopicIdWarning) as warned:
        distlog.topics(*root)
    assert [str(warning.message).partition(",")[0] for warning in warned] == [
        "backup has the topic id of views",
        "views has the topic id of backup",
    ]


def test_a_moved_topic_is_not_a_copy(root: Address) -> None:
    topic_at(root, "backup").drop()
    move_folder(root, "clicks", "views")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [topic.name for topic in distlog.topics(*root)] == ["views"]


def test_a_new_id_separates_the_topics(root: Address) -> None:
    old_topic = topic_at(root, "backup")
    new_id = old_topic.assign_new_id()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy, original = distlog.topics(*root)
    assert copy.snapshot.topic_id == new_id != original.snapshot.topic_id == old_topic.snapshot.topic_id
    assert (copy.end_offsets(), sorted(read(root, "backup"))) == ({0: 2, 1: 1}, [b"v0", b"v1", b"v2"])
    assert copy.append(values([9]), partition=0, app_id="load", batch_id=1).replayed
    assert copy.append(values([3]), partition=1).offsets == {1: (1, 2)}
    positions = copy.groups().to_table().to_pylist()
    assert [(row["group"], row["partition"], row["position"]) for row in positions] == [("g", 0, 2), ("g", 1, 1)]
    assert copy.verify().ok
    assert copy.history().to_table()["operation"].to_pylist()[1] == "new-id"


def test_a_group_deleted_under_a_new_id_does_not_return(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    topic.reset_group("billing", distlog.EARLIEST)
    old_id = topic.snapshot.topic_id
    topic.assign_new_id()
    topic = distlog.open(topic.url)
    topic.delete_group("billing")
    # the process that gave the new id continues late, with its second copy of the offsets
    carry_over_groups(topic.storage, old_id, topic.snapshot.topic_id)
    with pytest.raises(distlog.GroupNotFoundError):
        topic.delete_group("billing")


def test_open_topics_must_be_opened_again_after_a_new_id(root: Address) -> None:
    other = topic_at(root, "backup")
    writer = other.writer()
    writer.append(b"before", partition=0, timestamp=NOW)
    writer.flush()
    topic = topic_at(root, "backup")
    topic.assign_new_id()
    for open_topic in (topic, other):
        with pytest.raises(TopicNotFoundError, match="its id changed: open it again if it exists"):
            open_topic.append(values([4]), partition=0)
    with pytest.raises((CommitConflictError, TopicNotFoundError), match="its id changed"):  # noqa: PT012 - either call
        writer.append(b"after", partition=0, timestamp=NOW)
        writer.close()
    assert read(root, "backup").count(b"after") == 0
    with topic_at(root, "backup").writer() as again:
        again.append(b"again", partition=0, timestamp=NOW)
    assert sorted(read(root, "backup")) == [b"again", b"before", b"v0", b"v1", b"v2"]


def test_versions_before_a_new_id_can_be_read_and_brought_back(root: Address) -> None:
    topic = topic_at(root, "backup")
    version = topic.version
    topic.delete_records({0: 2})
    topic.assign_new_id()
    topic = topic_at(root, "backup")
    assert topic.start_offsets() == {0: 2, 1: 0}
    topic.restore(version)
    assert sorted(read(root, "backup")) == [b"v0", b"v1", b"v2"]
    former = distlog.open(topic.url, version, storage_options=root.options)
    assert former.scan(0, columns=["value"]).to_table()["value"].to_pylist() == [b"v0", b"v1"]


def test_a_checkpoint_and_its_commits_agree_on_the_ids(memory_url: Address) -> None:
    topic = distlog.create(f"{memory_url.url}/clicks")
    first = topic.snapshot.topic_id
    second = topic.assign_new_id()
    third = distlog.open(topic.url).assign_new_id()
    folded = distlog.open(topic.url).snapshot
    assert (folded.topic_id, folded.former_ids) == (third, (first, second))
    write_checkpoint(topic.storage, folded)
    for name in [file.name for file in topic.storage.list("_commits") if file.name.endswith("0.json")]:
        topic.storage.delete([name])
    loaded = distlog.open(topic.url)
    assert loaded.snapshot == folded
    assert loaded.append(values(range(1))).offsets == {0: (0, 1)}


@pytest.fixture
def on_a_store(tmp_path: Path, memory_url: Address) -> tuple[str, Address]:
    with distlog.create(str(tmp_path / "clicks"), 2).writer() as writer:
        writer.append(b"v0", partition=1)
    copy_files(Storage(str(tmp_path / "clicks")), Storage(f"{memory_url.url}/clicks"))
    return str(tmp_path / "clicks"), memory_url


USES: list[Callable[[distlog.Topic], object]] = [
    lambda topic: topic.scan(),
    lambda topic: topic.end_offsets(),
    lambda topic: topic.append(values([1]), partition=1),
    lambda topic: topic.alter_config({"retention.ms": -1}),
    lambda topic: topic.drop(),
    lambda topic: topic.verify(),
    lambda topic: topic.repair(),
]


@pytest.mark.parametrize("use", USES)
def test_an_active_segment_on_an_object_store_fails_with_advice(
    on_a_store: tuple[str, Address], use: Callable[[distlog.Topic], object]
) -> None:
    text = r"copied here with an active segment.*'distlog alter FOLDER --seal'.*and copy.*again \(.*partition=1\)"
    with pytest.raises(distlog.StorageError, match=text):
        use(topic_at(on_a_store[1], "clicks"))


def test_a_sealed_topic_can_be_copied_to_an_object_store(on_a_store: tuple[str, Address]) -> None:
    folder, address = on_a_store
    topic = distlog.open(folder)
    topic.seal()
    version = topic.version
    topic.seal()
    assert topic.version == version
    copy_files(Storage(folder), Storage(f"{address.url}/clicks"))
    copied = topic_at(address, "clicks")
    assert copied.append(values([1]), partition=1).offsets == {1: (1, 2)}
    assert read(address, "clicks") == [b"v0", b"v1"]
    assert copied.verify().ok

"""Topics are found in the roots, also next to damaged ones."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from addresses import Address
from histories import requests
from managed import Managed, create, errors
from topics import Clock, values

import distlog
from distlog.core.errors import InvalidConfigError, StorageError, TopicNotFoundError
from distlog.core.log_manager.broker_config import BrokerConfig
from distlog.core.log_manager.log_tasks import LogDirectory, TaskRun
from distlog.core.storage.storage import Storage


def test_the_topics_of_all_roots_are_loaded(tmp_path: Path, memory_url: Address) -> None:
    for name in ("clicks", "orders"):
        create(tmp_path, name)
    create(memory_url.url, "views", 3)
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "recovery-point-offset-checkpoint").write_text("0\n0\n")
    managed = Managed(tmp_path, memory_url.url, f"{tmp_path}/")
    assert managed.names() == ["clicks", "orders", "views"]
    assert managed.manager.topic("views").partitions == 3
    assert managed.manager.topic(f"{tmp_path}/clicks").url == f"{tmp_path}/clicks"
    assert managed.manager.errors == {}


def test_an_unknown_or_ambiguous_name_is_refused(tmp_path: Path) -> None:
    for root in ("a", "b"):
        create(tmp_path / root, "clicks")
    manager = Managed(tmp_path / "a", tmp_path / "b").manager
    with pytest.raises(TopicNotFoundError, match="several roots have this topic"):
        manager.topic("clicks")
    with pytest.raises(TopicNotFoundError, match="no root has loaded"):
        manager.topic("views")


def test_a_scan_adds_new_topics_and_removes_dropped_ones(tmp_path: Path) -> None:
    first = create(tmp_path, "clicks")
    managed = Managed(tmp_path)
    create(tmp_path, "orders")
    first.drop()
    assert managed.names() == ["clicks"]
    managed.after(minutes=1)
    assert managed.names() == ["orders"]
    again = create(tmp_path, "clicks", 2)
    managed.after(minutes=1)
    assert managed.names() == ["clicks", "orders"]
    assert managed.manager.topic("clicks").snapshot.topic_id == again.snapshot.topic_id
    assert managed.manager.errors == {}


def test_a_recreated_topic_replaces_the_old_one(tmp_path: Path) -> None:
    create(tmp_path, "clicks", 4).drop()
    create(tmp_path, "clicks", 4)
    managed = Managed(tmp_path)
    managed.manager.topic("clicks").drop()
    create(tmp_path, "clicks", 1)
    managed.after(minutes=1)
    assert managed.manager.topic("clicks").partitions == 1


def test_a_check_of_a_dropped_topic_is_two_small_requests(memory_url: Address) -> None:
    create(memory_url.url, "clicks").drop()
    directory = LogDirectory(Storage(memory_url.url), BrokerConfig(), Clock(), lambda: False)
    look = partial(directory.load_logs, TaskRun("load-logs", memory_url.url, 0))
    look()
    assert requests(directory.storage, look) == (2, 0, 1)
    create(memory_url.url, "clicks", 3)
    look()
    assert directory.topics["clicks"].partitions == 3


def test_a_bad_topic_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    for name in ("bad", "good"):
        create(tmp_path, name)
    commit = tmp_path / "bad" / "_commits" / f"{0:020}.json"
    content = commit.read_bytes()
    commit.write_bytes(content[:-5])
    managed = Managed(tmp_path)
    assert managed.names() == ["good"]
    assert list(errors(managed.runs, "load-logs")) == [f"{tmp_path}/bad"]
    assert "commit" in managed.manager.errors["load-logs"][f"{tmp_path}/bad"]
    commit.write_bytes(content)
    managed.after(minutes=1)
    assert (managed.names(), managed.manager.errors) == (["bad", "good"], {})


def test_a_bad_root_does_not_stop_the_others_and_is_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.write_text("a file where a folder should be")
    create(tmp_path / "good", "clicks").append(values(range(3)))
    managed = Managed(root, tmp_path / "good", log_retention_ms=1)
    assert managed.names() == ["clicks"]
    assert list(managed.manager.errors["load-logs"]) == [str(root)]
    runs = managed.after(minutes=1)
    assert {run.root for run in runs if run.task != "load-logs"} == {str(tmp_path / "good")}
    root.unlink()
    create(root, "views")
    managed.after(minutes=1)
    assert (managed.names(), managed.manager.errors) == (["views", "clicks"], {})
    assert str(root) in {run.root for run in managed.after(minutes=5) if run.task == "log-retention"}


@pytest.mark.parametrize("dropped", [False, True])
def test_a_topic_with_a_deleted_folder_is_removed(tmp_path: Path, dropped: bool) -> None:
    topic = create(tmp_path, "clicks")
    if dropped:
        topic.drop()
    managed = Managed(tmp_path)
    shutil.rmtree(tmp_path / "clicks")
    managed.after(minutes=5)
    assert (managed.names(), managed.manager.errors) == ([], {})
    assert not (tmp_path / "clicks").exists()


@pytest.mark.s3
def test_a_root_on_s3_and_one_whose_bucket_is_missing(s3_url: Address, tmp_path: Path) -> None:
    distlog.create(f"{s3_url.url}/clicks", 2, storage_options=s3_url.options)
    create(tmp_path, "orders")
    missing = "s3://no-such-bucket-here/logs"
    manager = distlog.LogManager([missing, s3_url.url, str(tmp_path)], storage_options=s3_url.options).load()
    assert [topic.name for topic in manager.topics] == ["clicks", "orders"]
    assert list(manager.errors["load-logs"]) == [missing]


def test_a_missing_root_is_reported_and_not_created(tmp_path: Path) -> None:
    managed = Managed(tmp_path / "later")
    managed.after(minutes=10)
    assert (managed.names(), list(tmp_path.iterdir())) == ([], [])
    assert "the root does not exist" in managed.manager.errors["load-logs"][f"{tmp_path}/later"]
    create(tmp_path / "later", "clicks")
    managed.after(minutes=1)
    assert (managed.names(), managed.manager.errors) == (["clicks"], {})


def test_a_root_that_is_a_topic_is_reported(tmp_path: Path) -> None:
    topic = create(tmp_path, "clicks")
    topic.append([{"value": "v"}])
    managed = Managed(tmp_path / "clicks")
    managed.after(minutes=1)
    assert managed.manager.errors["load-logs"] == {
        f"{tmp_path}/clicks": "the root is a topic, not a folder of topics: pass the folder that contains it"
    }


def test_wrong_roots_are_refused_at_once() -> None:
    with pytest.raises(InvalidConfigError, match="at least one root"):
        distlog.LogManager([])
    with pytest.raises(StorageError, match="credentials"):
        distlog.LogManager("s3://key:secret@bucket/logs")


def test_a_copy_of_a_topic_is_reported_and_maintained(tmp_path: Path) -> None:
    create(tmp_path, "clicks")
    shutil.copytree(tmp_path / "clicks", tmp_path / "backup")
    managed = Managed(tmp_path)
    assert managed.names() == ["backup", "clicks"]
    (error,) = errors(managed.after(minutes=1), "load-logs").items()
    assert error[0] == f"{tmp_path}/backup"
    assert error[1].startswith("has the topic id of clicks, since one is a copy of the other: ")
    distlog.open(str(tmp_path / "backup")).assign_new_id()
    managed.after(minutes=1)
    assert (managed.names(), managed.manager.errors) == (["backup", "clicks"], {})

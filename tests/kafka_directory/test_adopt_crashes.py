"""An adoption that dies at any step: the broker's files are as they were, and the next adoption goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from dying_calls import Died, DyingCalls
from log_dirs import contents, golden_of, partition_of, read

import distlog
from distlog import StorageError, TopicNotFoundError

#: All that changes files.
CALLS = ("link", "unlink", "replace", "rename", "mkdir", "fsync")


@pytest.mark.long
@pytest.mark.parametrize("way", ["in place", "copied"])
def test_a_crash_at_any_step_leaves_the_brokers_files_or_an_adopted_topic(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, died, fail_at = golden_of("first")["java-lz4-0"].records(), 0, 0
    while True:
        # 1. one index is missing, so that a file must be made too
        folder = partition_of("first", tmp_path / str(fail_at), "java-lz4-0")
        next(folder.glob("*.index")).unlink()
        before = contents(folder.parent)
        target = None if way == "in place" else str(tmp_path / str(fail_at) / "copies" / "java-lz4")
        url = str(folder.parent / "java-lz4") if target is None else target
        # 2. the adoption dies
        with monkeypatch.context() as patch:
            deaths = DyingCalls(fail_at, patch, CALLS)
            try:
                distlog.adopt(folder, target)
            except Died:
                died += 1
        # 3. there is the topic, whole, or there is none
        try:
            assert read(distlog.open(url)) == records
        except TopicNotFoundError:
            assert deaths.count > fail_at
        # 4. and nothing happened to the broker's files, in whose place the next adoption goes on
        after = contents(folder.parent)
        assert {name: after[name] for name in before} == before
        topic = distlog.adopt(folder, target).topic
        assert read(topic) == records
        assert topic.verify().ok
        if deaths.count <= fail_at:
            break
        fail_at += 1
    assert died > 15


def test_files_of_others_where_the_topics_would_be_are_not_touched(tmp_path: Path) -> None:
    folder = partition_of("first", tmp_path, "txn-0")
    other = tmp_path / "topics" / "txn" / "txn-0"
    other.mkdir(parents=True)
    (other / "00000000000000000000.log").write_bytes(b"of another broker")
    with pytest.raises(StorageError, match="other files are where the topic's would be"):
        distlog.adopt(folder, str(tmp_path / "topics" / "txn"))
    assert (other / "00000000000000000000.log").read_bytes() == b"of another broker"

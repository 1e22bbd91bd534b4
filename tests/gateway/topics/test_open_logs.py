"""The logs that a gateway keeps open: not too many, flushed in time, and closed when nobody uses them."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, open_topic, producing, serving, until
from gateways import gateway as gateway
from open_files import open_below
from raw_batches import batch, record

import distlog
from distlog.core.log.partition_log import OpenLogs, PartitionLog
from distlog.core.topic import Topic
from distlog.gateway import gateway_server
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.topics.partition import RefreshingTopic

DATA = batch([record(0)])


def partition_log(topic: Topic, number: int) -> PartitionLog:
    return PartitionLog(topic.handle, number, topic.current)


def logs_of(topic: Topic) -> OpenLogs[int]:
    return OpenLogs(partial(partition_log, topic))


class OneOpenLog(OpenLogs[Any]):
    """Open logs with a limit that the open logs of other tests have no share of."""

    def open_limit(self) -> int:
        return 1


class TwoOpenLogs(OpenLogs[Any]):
    def open_limit(self) -> int:
        return 2


def test_no_more_logs_stay_open_than_the_limit(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=4)
    logs, open_logs = TwoOpenLogs(partial(partition_log, topic)), list[list[int]]()
    for number in (0, 1, 2, 2, 1, 0):
        with logs.use(number) as log:
            log.append_batches(DATA)
        open_logs.append([number for number in range(4) if open_below(tmp_path / "clicks" / f"clicks-{number}")])
    assert open_logs == [[0], [0, 1], [1, 2], [1, 2], [1, 2], [0, 1]]
    for number in range(4):
        logs.close(number)
    assert topic.refresh().end_offsets() == {0: 2, 1: 2, 2: 2, 3: 0}


def test_an_append_is_not_failed_by_another_log_that_cannot_be_closed(tmp_path: Path) -> None:
    topics = {name: distlog.create(str(tmp_path / name)) for name in ("gone", "sound")}
    logs = OneOpenLog(lambda name: PartitionLog(topics[name].handle, 0, topics[name].current))
    with logs.use("gone") as log:
        log.append_batches(DATA)
    shutil.rmtree(tmp_path / "gone")
    with logs.use("sound") as log:
        log.append_batches(DATA)
    assert topics["sound"].refresh().end_offsets() == {0: 1}
    logs.flush_due()
    assert not open_below(tmp_path / "gone")
    logs.close("sound")


def test_a_log_that_is_used_is_closed_by_its_last_user(tmp_path: Path) -> None:
    logs = logs_of(distlog.create(str(tmp_path / "clicks")))
    with logs.use(0) as log:
        log.append_batches(DATA)
        with logs.use(0):
            logs.close(0)
        assert open_below(tmp_path / "clicks")
    assert not open_below(tmp_path / "clicks")


def test_flush_ms_applies_without_appends(tmp_path: Path) -> None:
    distlog.create(str(tmp_path / "clicks"), config={"flush.messages": 1000, "flush.ms": 100})
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert producing(wire, DATA).base_offset == 0
        topic = open_topic(gateway)
        log = PartitionLog(topic.handle, 0, topic.current)
        until(lambda: log.end().flushed_offset == 1)
        log.close()


def test_the_files_of_a_topic_that_another_program_drops_are_closed_though_no_client_names_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_server, "_CLOSE_MS", 10)
    folder = tmp_path / "clicks"
    distlog.create(str(folder))
    with serving(tmp_path) as gateway, Wire(gateway) as wire:
        assert producing(wire, DATA).base_offset == 0
        open_topic(gateway).drop()
        until(lambda: "clicks" not in gateway.broker.metadata.loaded and not open_below(folder))


def test_an_unreadable_topic_does_not_end_the_task(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway.broker.metadata.topic("clicks")
    looks = list[str]()

    def refused(topic: RefreshingTopic, max_age_ms: int = 0) -> None:
        looks.append(topic.name)
        raise FileNotFoundError("missing object")

    monkeypatch.setattr(RefreshingTopic, "refresh", refused)
    gateway.broker.metadata.close_unused(lambda: False)
    assert "clicks" in looks


def test_an_unused_log_is_closed(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"), partitions=2, config={"flush.messages": 1000})
    logs = logs_of(topic)

    def append(number: int) -> None:
        with logs.use(number) as log:
            log.append_batches(DATA)

    for number in (0, 1):
        append(number)
    logs.close_idle()
    logs.flush_due()
    append(1)
    assert open_below(tmp_path / "clicks" / "clicks-0")
    with logs.use(1):
        logs.close_idle()
        logs.close_idle()
    assert not open_below(tmp_path / "clicks" / "clicks-0")
    assert open_below(tmp_path / "clicks" / "clicks-1")
    assert records(topic) == [1, 0]
    for number in (0, 1):
        append(number)
        logs.close(number)
    assert topic.refresh().end_offsets() == {0: 2, 1: 3}


def records(topic: Topic) -> list[int]:
    logs = [PartitionLog(topic.handle, number, topic.current) for number in range(topic.partitions)]
    actual = [log.end().flushed_offset for log in logs]
    for log in logs:
        log.close()
    return actual


@pytest.mark.parametrize("by_time", [True, False])
def test_a_log_closed_for_others_is_flushed(tmp_path: Path, by_time: bool) -> None:
    settings = {"flush.messages": 1000, **({"flush.ms": 0} if by_time else {})}
    topic = distlog.create(str(tmp_path / "clicks"), partitions=3, config=settings)
    logs = OneOpenLog(partial(partition_log, topic))
    for number in range(3):
        with logs.use(number) as log:
            log.append_batches(DATA)
    assert records(topic) == [0, 0, 0]
    logs.flush_due()
    assert records(topic) == ([1, 1, 1] if by_time else [0, 0, 0])
    for number in range(3):
        logs.close(number)
    assert records(topic) == [1, 1, 1]

"""An unreadable topic does not affect others, and clients learn no folders of the server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from gateways import METADATA, NO_WAIT, Wire, fetching, open_topic, producing, serving
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

import distlog
from distlog.core import errors, paths
from distlog.core.commits import commit_log
from distlog.core.storage.storage import Storage
from distlog.gateway.config import GatewayConfig
from distlog.gateway.event_log import FailureLog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.protocol.error_codes import client_text, error_code

DESCRIBE_LOG_DIRS, CREATE_TOPICS = 35, 19


def damaged(root: Path, commit: bytes = b'{"damaged":1}') -> Path:
    """A root with the topics `clicks`, `orders` and `views`, of which `orders` has this text as its first commit."""
    for name in ("clicks", "orders", "views"):
        distlog.create(str(root / name))
    (root / "orders" / paths.commit_file(0)).write_bytes(commit)
    return root


def all_topics(wire: Wire, version: int) -> dict[str, ErrorCode]:
    fields = {"allow_auto_topic_creation": False} if version >= 4 else {}
    response = wire.ask(METADATA, version, topics=None, **fields)
    return {topic.name: topic.error_code for topic in response.topics if not topic.name.startswith("__")}


def test_one_damaged_topic_gets_its_error_code_and_the_log_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(damaged(tmp_path)) as gateway, Wire(gateway) as wire:
        expected = {"clicks": ErrorCode.none, "orders": ErrorCode.kafka_storage_error, "views": ErrorCode.none}
        assert all_topics(wire, 4) == all_topics(wire, 7) == expected
        (result,) = wire.ask(DESCRIBE_LOG_DIRS, 2, topics=None).results
        assert {"clicks", "views"} <= {topic.name for topic in result.topics}
        assert "orders" not in {topic.name for topic in result.topics}
        schema = import_module("kio.schema.describe_log_dirs.v2.request")
        requested = [
            schema.DescribableLogDirTopic(topic=name, partitions=(0, 7)) for name in ("a/b", "orders", "views")
        ]
        (result,) = wire.ask(DESCRIBE_LOG_DIRS, 2, topics=tuple(requested)).results
        assert [(topic.name, len(topic.partitions)) for topic in result.topics] == [("views", 1)]
    assert caplog.text.count("topic orders failed") == 1


def _auto(wire: Wire, name: str, **fields: Any) -> ErrorCode:
    schema = import_module("kio.schema.metadata.v4.request")
    (topic,) = wire.ask(METADATA, 4, topics=(schema.MetadataRequestTopic(name=name),), **fields).topics
    code: ErrorCode = topic.error_code
    return code


def test_a_client_that_wants_no_topic_created_gets_none(tmp_path: Path) -> None:
    with serving(tmp_path, auto_create_topics=True) as gateway, Wire(gateway) as wire:
        code = _auto(wire, "mistyped", allow_auto_topic_creation=False)
        assert (code, (tmp_path / "mistyped").exists()) == (ErrorCode.unknown_topic_or_partition, False)
        assert _auto(wire, "wanted", allow_auto_topic_creation=True) is ErrorCode.none


@pytest.mark.parametrize("commit", [b'{"damaged":1}', b'{"format":1}'], ids=["damaged", "of another version"])
def test_errors_name_the_fault_and_no_folder(tmp_path: Path, commit: bytes) -> None:
    with GatewayServer(str(damaged(tmp_path, commit)), port=0) as gateway, Wire(gateway) as wire:
        schema = import_module("kio.schema.create_topics.v4.request")
        topics = tuple(
            schema.CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=(), configs=())
            for name in ("clicks", "orders")
        )
        response = wire.ask(CREATE_TOPICS, 4, topics=topics, timeout=NO_WAIT, validate_only=True).topics
    assert [topic.error_message for topic in response] == [
        "Topic 'clicks' already exists.",
        "Topic 'orders' already exists.",
    ]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.InvalidConfigError("wrong", value=5), "wrong (value=5)"),
        (
            errors.TopicNotFoundError("not there", url="/srv/data/x"),
            "This server does not host this topic-partition.",
        ),
        (errors.CorruptRecordError("changed on its way", file=None, size=3), "changed on its way (size=3)"),
        (errors.CorruptRecordError("a batch of ours", file="/srv/data/x"), None),
        (errors.StorageError("cannot write /srv/data/x"), None),
        (PermissionError(13, "Permission denied", "/srv/data/x"), None),
        (KeyError("/srv/data/x"), None),
    ],
    ids=lambda param: type(param).__name__,
)
def test_hidden_details_are_logged(error: Exception, text: str | None, caplog: pytest.LogCaptureFixture) -> None:
    error_code(error, f"{text} {type(error).__name__}")
    assert client_text(error) == (text or "the request failed in the gateway: see its log")
    assert ("/srv/data/x" in caplog.text) == (text is None)


def test_the_same_failure_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    log = FailureLog(lambda: now_s[0])
    for now_s[0] in (0.0, 30.0, 59.0, 61.0):
        log.note("a request", errors.StorageError("no"))
    log.note("another", errors.StorageError("no"))
    assert [record.getMessage() for record in caplog.records] == [
        "a request failed: no",
        "a request failed: no",
        "another failed: no",
    ]


DATA = batch([record(0, 0, b"k", b"v")])


def test_on_a_disk_the_next_batch_is_refused_and_the_topic_can_be_created_again(gateway: GatewayServer) -> None:
    folder = Path(gateway.root) / "clicks"
    with Wire(gateway) as wire:
        assert producing(wire, DATA).error_code is ErrorCode.none
        shutil.rmtree(folder)
        assert producing(wire, DATA).error_code is ErrorCode.unknown_topic_or_partition
        assert fetching(wire, 0).error_code is ErrorCode.unknown_topic_or_partition
        assert not list(folder.rglob("*.json"))
        distlog.create(str(folder), partitions=2)
        assert (producing(wire, DATA).base_offset, open_topic(gateway).end_offsets()) == (0, {0: 1, 1: 0})


@pytest.fixture
def on_objects(memory_url: Address) -> Iterator[GatewayServer]:
    distlog.create(f"{memory_url.url}/clicks", partitions=2)
    with GatewayServer(memory_url.url, port=0, config=GatewayConfig(linger_ms=1)) as served:
        yield served


def test_on_an_object_store_batches_are_refused_after_the_next_refresh(
    on_objects: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = Storage(f"{on_objects.root}/clicks")
    with Wire(on_objects) as wire:
        assert producing(wire, DATA).error_code is ErrorCode.none
        topic.delete([file.name for file in topic.list("_commits")])
        monkeypatch.setattr(commit_log, "EXISTENCE_CHECK_S", 0.0)
        assert producing(wire, DATA).error_code is ErrorCode.unknown_topic_or_partition
        assert not topic.list("_commits")

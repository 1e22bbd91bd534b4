"""The codec of new batches: the topic's, or the writer's if compression.type is producer."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from command_line import CommandLine
from topics import contents, topic_on

from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.format.compression import CODEC_NAMES
from distlog.core.format.record_batch import CODEC_MASK, read_headers
from distlog.core.storage.storage import Storage
from distlog.core.topic import Topic

ROWS = [{"value": b"v" * 100} for _ in range(10)]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def topic_of(**config: object) -> Topic:
    return topic_on(
        Storage(f"memory://{uuid.uuid4().hex}"), 1, {key.replace("_", "."): value for key, value in config.items()}
    )


def codecs(topic: Topic) -> list[str]:
    header = read_headers(bytes(topic.refresh().read(0, 0)))["attributes"] & CODEC_MASK
    return [CODEC_NAMES[codec] for codec in header.tolist()]


@pytest.mark.parametrize("codec", CODECS)
def test_a_writer_chooses_if_compression_type_is_producer(codec: str) -> None:
    topic = topic_of()
    topic.append(ROWS, compression=codec)
    assert codecs(topic) == [codec]
    assert topic.segments()["compression"].to_pylist() == [codec]
    assert contents(topic)[0] == [row["value"] for row in ROWS]


def test_each_append_of_a_topic_may_choose_another() -> None:
    topic = topic_of()
    for codec in (*CODECS, None):
        topic.append(ROWS, compression=codec)
    assert topic.segments()["compression"].to_pylist() == [*CODECS, "none"]


def test_transactions_and_writers_choose_as_appends_do() -> None:
    topic = topic_of()
    with topic.transaction(compression="lz4") as transaction:
        transaction.append(ROWS)
    with topic.writer(compression="zstd") as writer:
        writer.append(b"v" * 100)
    assert topic.refresh().segments()["compression"].to_pylist() == ["lz4", "zstd"]


@pytest.mark.parametrize(("setting", "codec"), [("gzip", "gzip"), ("uncompressed", "none")])
def test_the_topics_codec_takes_precedence_as_in_kafka(setting: str, codec: str) -> None:
    topic = topic_of(compression_type=setting)
    topic.append(ROWS, compression="zstd")
    assert codecs(topic) == [codec]


@pytest.mark.parametrize("setting", ["producer", "gzip"])
def test_an_unknown_codec_is_refused_by_name(setting: str) -> None:
    topic = topic_of(compression_type=setting)
    for attempt in (
        lambda: topic.append(ROWS, compression="brotli"),
        lambda: topic.transaction(compression="brotli"),
        lambda: topic.writer(compression="brotli"),
    ):
        with pytest.raises(InvalidConfigError, match=r"none, gzip, snappy, lz4, zstd.*brotli"):
            attempt()
    assert topic.refresh().version == 0


def test_a_writer_refuses_what_its_own_codec_may_not_fit() -> None:
    topic = topic_of(max_message_bytes=1000)
    value = bytes(1000 - 61 - 50)
    with topic.writer() as writer:
        writer.append(value)
    with topic.writer(compression="gzip") as writer, pytest.raises(InvalidRecordError, match=r"max\.message\.bytes"):
        writer.append(value)


def test_the_command_line_chooses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    distlog = CommandLine(f"{tmp_path}/clicks", monkeypatch, capsys)
    distlog.ok("create")
    distlog.ok("append", "--compression", "zstd", stdin=b"a\nb\n")
    distlog.ok("append", stdin=b"a\nb\n")
    assert topic_on(Storage(distlog.url)).segments()["compression"].to_pylist() == ["zstd", "none"]
    assert "brotli" in distlog("append", "--compression", "brotli", stdin=b"a\n").err

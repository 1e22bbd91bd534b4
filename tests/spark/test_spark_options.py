"""Options and offset JSON of Spark's Kafka source; no Spark session is needed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError
from distlog.core.read.lookup import EARLIEST, LATEST
from distlog.spark.options import (
    Bound,
    ByPartition,
    ReadOptions,
    format_assign,
    offsets_json,
    parse_assign,
    parse_offsets,
)
from distlog.spark.sink import WriteOptions

PATH = "/logs/clicks"


def read_options(**options: str) -> ReadOptions:
    return ReadOptions.parse({"path": PATH, **options})


def refused(**options: str) -> str:
    with pytest.raises(InvalidConfigError) as raised:
        read_options(**options)
    return str(raised.value)


def test_without_options_everything_is_read() -> None:
    options = read_options()
    assert options.start == Bound("offset", EARLIEST, "startingOffsets")
    assert options.end == Bound("offset", LATEST, "endingOffsets")
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert options.isolation == "read_uncommitted"
    assert options.storage.url == PATH


def test_names_are_case_insensitive() -> None:
    options = read_options(STARTINGOFFSETS="Latest", minpartitions="7", includeHEADERS="TRUE", columns="key, value")
    assert options.start.value == LATEST
    assert (options.min_partitions, options.include_headers, options.columns) == (7, True, ("key", "value"))


def test_a_time_overrides_times_by_partition_and_offsets() -> None:
    offsets, times = '{"clicks": {"0": 3}}', '{"clicks": {"0": 1000}}'
    options = {"endingOffsets": offsets, "endingOffsetsByTimestamp": times, "endingTimestamp": "77"}
    assert read_options(**options).end == Bound("time", 77, "endingTimestamp")
    del options["endingTimestamp"]
    assert read_options(**options).end == Bound("time", ByPartition("clicks", {0: 1000}), "endingOffsetsByTimestamp")
    del options["endingOffsetsByTimestamp"]
    assert read_options(**options).end == Bound("offset", ByPartition("clicks", {0: 3}), "endingOffsets")


def test_times_may_be_iso_8601() -> None:
    assert read_options(startingTimestamp="2023-11-14T22:13:20Z").start.value == 1_700_000_000_000
    assert read_options(timestampAsOf="2023-11-14 22:13:20").timestamp_ms == 1_700_000_000_000


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("startingOffsets", "soonest"),
        ("startingOffsets", '{"clicks": {"0": "3"}}'),
        ("startingOffsets", '{"clicks": {"0": true}}'),
        ("startingOffsets", '{"clicks": {"x": 3}}'),
        ("startingOffsets", '{"clicks": [1]}'),
        ("startingOffsets", '{"clicks": {"0": 3}, "other": {"0": 3}}'),
        ("startingOffsets", "[]"),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-5"),
        ("startingOffsetsByTimestamp", '{"clicks": {"0": -1}}'),
        ("startingOffsetsByTimestampStrategy", "guess"),
        ("minPartitions", "0"),
        ("minPartitions", "many"),
        ("maxRecordsPerPartition", "-1"),
        ("failOnDataLoss", "maybe"),
        ("kafka.isolation.level", "serializable"),
        ("versionAsOf", "-1"),
        ("assign", '{"clicks": []}'),
        ("assign", '{"clicks": [0.5]}'),
        ("assign", '{"clicks": {"0": 1}}'),
    ],
)
def test_an_invalid_value_is_refused_by_the_options_name(option: str, value: str) -> None:
    assert option in refused(**{option: value})


def test_a_misspelt_option_is_refused_with_the_nearest_name() -> None:
    assert "did you mean startingOffsets?" in refused(startingOffset="earliest")
    assert "did you mean minPartitions?" in refused(minPartition="3")
    with pytest.raises(InvalidConfigError, match=r"did you mean txnAppId\?"):
        WriteOptions.parse({"path": PATH, "txnApp": "x"})


def test_options_of_kafka_jobs_and_spark_are_ignored() -> None:
    read_options(**{"kafka.bootstrap.servers": "broker:9092", "groupIdPrefix": "spark", "checkpointLocation": "/c"})
    WriteOptions.parse({"path": PATH, "topic": "clicks", "kafka.acks": "all", "queryName": "q"})


@pytest.mark.parametrize("codec", ["gzip", "lz4", "zstd"])
def test_the_level_of_a_codec_is_an_option(codec: str) -> None:
    WriteOptions.parse({"path": PATH, f"kafka.compression.{codec}.level": "3"})
    with pytest.raises(InvalidConfigError, match=r"did you mean kafka.compression.type\?"):
        WriteOptions.parse({"path": PATH, "kafka.compresion.type": codec})


def test_a_version_and_a_time_contradict_each_other() -> None:
    assert "not both" in refused(versionAsOf="1", timestampAsOf="1")


def test_a_missing_path_is_explained() -> None:
    with pytest.raises(InvalidConfigError, match="no topic is named"):
        ReadOptions.parse({"minPartitions": "1"})


def test_storage_options_reach_the_storage_and_are_not_printed() -> None:
    raw_options = {"path": "s3://bucket/clicks", "storage.secret": "hush", "STORAGE.key": "psst"}
    for options in (ReadOptions.parse(raw_options), WriteOptions.parse(raw_options)):
        assert options.storage.__reduce__()[1][1] == {"secret": "hush", "key": "psst"}
        assert "hush" not in repr(options)
        assert "psst" not in str(options)


def test_a_wrong_option_does_not_show_secrets() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        ReadOptions.parse({"path": PATH, "storage.secret": "hush", "failOnDataLoss": "x"})
    assert "hush" not in repr(raised.value)
    with pytest.raises(StorageError) as refused_url:
        ReadOptions.parse({"path": "s3://me:hush@bucket/clicks"})
    assert "hush" not in str(refused_url.value)


def test_a_transaction_needs_an_application_and_a_version() -> None:
    assert WriteOptions.parse({"path": PATH, "txnAppId": "a", "txnVersion": "7"}).batch_id == 7
    assert WriteOptions.parse({"path": PATH, "txnAppId": "a", "txnVersion": "day-7"}).batch_id == "day-7"
    for alone in ({"txnAppId": "a"}, {"txnVersion": "7"}):
        with pytest.raises(InvalidConfigError, match="together"):
            WriteOptions.parse({"path": PATH, **alone})


def test_a_write_accepts_two_names_of_the_codec_option() -> None:
    assert WriteOptions.parse({"path": PATH}).compression is None
    assert WriteOptions.parse({"path": PATH, "compression": "zstd"}).compression == "zstd"
    assert WriteOptions.parse({"path": PATH, "kafka.compression.type": "lz4"}).compression == "lz4"


@given(st.dictionaries(st.integers(0, 50), st.integers(-2, 2**63 - 1), min_size=1))
def test_offsets_survive_their_json(offsets: dict[int, int]) -> None:
    text = json.dumps(offsets_json("clicks", offsets))
    assert parse_offsets(text, "startingOffsets") == ByPartition("clicks", offsets)
    assert list(json.loads(text)["clicks"]) == [str(partition) for partition in sorted(offsets)]
    assert set(parse_assign(format_assign("clicks", offsets)).numbers) == set(offsets)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    )
)
def test_invalid_json_raises_config_errors(value: Any) -> None:
    for parse in (lambda text: parse_offsets(text, "x"), parse_assign):
        try:
            parsed = parse(json.dumps(value))
        except InvalidConfigError:
            continue
        assert all(type(number) is int for number in parsed.numbers.values())


def test_offsets_must_be_of_this_topic_and_of_all_its_partitions() -> None:
    numbers = ByPartition("clicks", {0: 1, 1: 2})
    numbers.check("clicks", [0, 1], "startingOffsets")
    with pytest.raises(InvalidConfigError, match="about another topic"):
        numbers.check("views", [0, 1], "startingOffsets")
    with pytest.raises(InvalidConfigError, match="every partition"):
        numbers.check("clicks", [0, 1, 2], "startingOffsets")
    with pytest.raises(InvalidConfigError, match="every partition"):
        numbers.check("clicks", [0], "startingOffsets")


@pytest.mark.parametrize("wrong", [{"txnAppId": ""}, {"txnAppId": "x" * 1001}, {"txnVersion": "9" * 5000}])
def test_ids_that_no_commit_can_hold_are_refused_before_any_task(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidRecordError, match="give app_id and batch_id together"):
        WriteOptions.parse({"path": "memory://facts/clicks", "txnAppId": "job", "txnVersion": "7", **wrong})


@pytest.mark.parametrize(("options", "is_stream"), [({"txnVersion": "1"}, False), ({}, True)])
def test_a_write_cannot_use_the_app_id_of_a_producer(options: dict[str, str], is_stream: bool) -> None:
    with pytest.raises(InvalidRecordError, match="are reserved: give another app_id"):
        WriteOptions.parse(
            {"path": "memory://facts/clicks", "txnAppId": "producer:a", **options}, is_stream=is_stream
        )

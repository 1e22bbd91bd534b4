"""distlog.spark: append, read, session and register as function calls."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from addresses import Address
from kafka.partitioner.default import murmur2
from pyspark.sql import DataFrame, SparkSession

import distlog
from distlog.core.errors import InvalidConfigError, InvalidRecordError, StorageError, TopicNotFoundError
from distlog.spark import append, frame, read, register, register_tables, stream
from distlog.spark.spark_session import DEFAULTS, default_settings

pytestmark = pytest.mark.spark


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"), partitions=3)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> distlog.Topic:
    new_topic = distlog.create(str(tmp_path_factory.mktemp("frames") / "clicks"), partitions=3)
    for half in (range(10), range(10, 20)):
        new_topic.append(
            [
                {"value": b"%d" % i, "timestamp": 1000 * i, "partition": partition}
                for partition in (0, 1)
                for i in half
            ]
        )
    return new_topic


def people(spark: SparkSession, count: int = 30, tasks: int = 2) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("concat('user', id % 10) as user", "cast(id as string) as line")


def offsets(df: DataFrame) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in df.select("partition", "offset").collect()]


def test_storage_options_of_a_read_are_pickled_by_spark(spark: SparkSession, filled: distlog.Topic) -> None:
    options: Any = {"token": lambda: "as a notebook makes it"}
    assert read(spark, filled.url, storage_options=options).count() == 40


def test_append_returns_the_version_and_the_offsets(spark: SparkSession, topic: distlog.Topic) -> None:
    first = append(people(spark), topic.url, key="user", value="line")
    second = append(people(spark), topic.url, key="user", value="line")
    assert (first.version, first.record_count, first.replayed) == (1, 30, False)
    assert second.version == 2
    ends = topic.refresh().end_offsets()
    assert {number: span[1] for number, span in second.offsets.items()} == {n: end for n, end in ends.items() if end}
    assert all(first.offsets[number] == (0, span[0]) for number, span in second.offsets.items())


def test_append_accepts_a_topic_and_refreshes_it(spark: SparkSession, s3_url: Address) -> None:
    new_topic = distlog.create(f"{s3_url.url}/clicks", 2, storage_options=s3_url.options)
    topic, old = (
        distlog.open(new_topic.url, storage_options=s3_url.options),
        distlog.open(new_topic.url, 0, None, s3_url.options),
    )
    new_topic.append([{"value": b"before"}])
    rows = people(spark, 3).selectExpr("line as value")
    assert append(rows, topic).version == topic.version == 2
    assert read(spark, topic).count() == 4
    with pytest.raises(distlog.InvalidConfigError, match="a Topic has its storage"):
        append(rows, topic, storage_options=s3_url.options)
    with pytest.raises(distlog.ReadOnlyTopicError):
        append(rows, old)


def test_an_append_succeeds_if_only_the_refresh_after_it_fails(
    spark: SparkSession, topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh, looks = distlog.Topic.refresh, list[int]()

    def failing(topic: distlog.Topic) -> distlog.Topic:
        looks.append(topic.version)
        if len(looks) > 1:
            raise StorageError("the storage stopped")
        return refresh(topic)

    monkeypatch.setattr(distlog.Topic, "refresh", failing)
    assert append(people(spark), topic, value="line").record_count == 30
    assert looks == [0, 0]
    monkeypatch.undo()
    assert sum(topic.refresh().end_offsets().values()) == 30


def test_an_empty_append_creates_no_version(spark: SparkSession, topic: distlog.Topic) -> None:
    result = append(people(spark, 0), topic.url, value="line")
    assert (result.version, result.record_count) == (None, 0)


def test_append_accepts_column_names_and_expressions(spark: SparkSession, topic: distlog.Topic) -> None:
    named = people(spark).selectExpr("user as key", "line as value", "1 as partition")
    append(named, topic.url, timestamp=named.value.cast("long"))
    (record, *_) = topic.refresh().records(partition=1)
    assert (record.key, record.value, record.timestamp) == (b"user0", b"0", 0)


def test_append_never_drops_a_column_silently(spark: SparkSession, topic: distlog.Topic) -> None:
    for other in ("user", "VALUE", "a.b"):
        with pytest.raises(InvalidRecordError, match=f"unknown column {other}"):
            append(people(spark).selectExpr(f"user as `{other}`", "line as key"), topic)
    append(read(spark, topic.url, include_headers=True), topic.url)


def test_rows_of_another_type_are_refused_before_spark_plans(spark: SparkSession, topic: distlog.Topic) -> None:
    for columns, reason in (
        ("string(id) key", "the data has no column value"),
        ("id value", "column value must be binary or str"),
    ):
        for shuffle in (False, True):
            with pytest.raises(InvalidRecordError, match=reason):
                append(spark.range(1).selectExpr(columns), topic, shuffle=shuffle)


def test_arguments_of_another_type_are_refused_with_advice(spark: SparkSession, filled: distlog.Topic) -> None:
    rows: Any = [{"value": "x"}]
    with pytest.raises(InvalidRecordError, match=r"a DataFrame of Spark.*type=list"):
        append(rows, filled)
    with pytest.raises(InvalidRecordError, match=r"key must be the name of a column, or a Column \(type=list\)"):
        append(people(spark), filled, key=rows)
    for reads in (read, stream, register_tables):
        with pytest.raises(InvalidConfigError, match=r"the first argument must be a SparkSession \(got=list\)"):
            reads(rows, filled.url)
    wrong: Any = 5
    with pytest.raises(InvalidConfigError, match=r"columns must be a name or some names \(got=int\)"):
        read(spark, filled, columns=wrong)
    with pytest.raises(InvalidConfigError, match=r"min_partitions must be a whole number \(value='2'\)"):
        read(spark, filled, min_partitions=cast("int", "2"))


def test_a_replayed_append_returns_the_first_result(spark: SparkSession, topic: distlog.Topic) -> None:
    first = append(people(spark), topic.url, value="line", app_id="job", batch_id=7)
    append(people(spark), topic.url, value="line")
    again = append(people(spark), topic.url, value="line", app_id="job", batch_id="7")
    assert (again.version, again.offsets) == (first.version, first.offsets)
    assert (first.replayed, again.replayed) == (False, True)
    with pytest.raises(InvalidRecordError, match="together"):
        append(people(spark), topic.url, value="line", app_id="job")


def test_a_shuffle_makes_one_segment_per_partition(spark: SparkSession, topic: distlog.Topic) -> None:
    result = append(people(spark, 400, 4), topic.url, key="user", value="line", shuffle=True)
    table = topic.refresh().scan().to_table()
    assert result.record_count == table.num_rows == 400
    for key, partition in zip(table["key"].to_pylist(), table["partition"].to_pylist(), strict=True):
        assert partition == (murmur2(key) & 0x7FFFFFFF) % 3
    assert topic.segments().num_rows == len(result.offsets)


def test_a_shuffle_respects_given_partitions_and_spreads_rows_without_keys(
    spark: SparkSession, topic: distlog.Topic
) -> None:
    rows = people(spark, 4000, 1).selectExpr(
        "repeat(line, 100) as value", "case when line % 2 = 0 then 2 end as partition"
    )
    append(rows, topic.url, shuffle=True)
    ends = topic.refresh().end_offsets()
    assert sum(ends.values()) == 4000
    assert ends[2] >= 2000
    assert min(ends[0], ends[1]) > 0


def test_a_shuffle_accepts_partitions_of_any_integer_type(spark: SparkSession, topic: distlog.Topic) -> None:
    append(spark.sql("select 'a' as value, 2L as partition"), topic.url, shuffle=True)
    assert topic.refresh().end_offsets() == {0: 0, 1: 0, 2: 1}
    with pytest.raises(Exception, match="4294967296 not in range"):
        append(spark.sql("select 'b' as value, 4294967296L as partition"), topic.url, shuffle=True)


def test_append_in_foreachBatch_reports_a_replay(  # noqa: N802 - Spark's name
    spark: SparkSession, topic: distlog.Topic, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb")
    results = []

    def write(df: DataFrame, batch: int) -> None:
        results.append(append(df, topic.url, app_id="copy", batch_id=batch))

    def run() -> None:
        stream = spark.readStream.format("text").load(str(tmp_path / "in"))
        query = stream.writeStream.foreachBatch(write)
        query = query.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        query.start().awaitTermination()

    run()
    for commit_file in (tmp_path / "checkpoint" / "commits").glob("*0*"):
        commit_file.unlink()
    run()
    assert [result.replayed for result in results] == [False, True]
    assert results[0].offsets == results[1].offsets != {}
    assert sum(topic.refresh().end_offsets().values()) == 2


def test_read_has_the_arguments_of_a_scan(spark: SparkSession, filled: distlog.Topic) -> None:
    for bounds in (
        {},
        {"start": 15, "out_of_range": "latest"},
        {"start": {0: 3, 1: 18}, "end": {0: 5}, "partitions": [0, 1]},
        {"start_time": 17_500, "end_time": 19_000},
        {"partitions": [1], "start_time": "1970-01-01T00:00:18Z"},
        {"partitions": [2]},
    ):
        expected = distlog.open(filled.url).scan(**bounds).to_table()  # type: ignore[arg-type]
        offsets_read = offsets(read(spark, filled.url, min_partitions=3, **bounds))  # type: ignore[arg-type]
        assert offsets_read == list(
            zip(expected["partition"].to_pylist(), expected["offset"].to_pylist(), strict=True)
        )


def test_times_are_record_times_after_a_backfill(spark: SparkSession, topic: distlog.Topic) -> None:
    for partition, times in ((0, (8, 9)), (0, (1, 5)), (1, (5, 2)), (1, (-1, 6, 3))):
        topic.append([{"value": b"v", "timestamp": time} for time in times], partition=partition)
    for start, end in ((5, None), (None, 5), (2, 6), (100, None), (0, 100)):
        frame = read(spark, topic.url, start_time=start, end_time=end, min_partitions=3)
        expected = topic.scan(start_time=start, end_time=end).to_table()
        assert offsets(frame) == list(
            zip(*(expected[name].to_pylist() for name in ("partition", "offset")), strict=True)
        )
        only_values = read(spark, topic.url, ["value"], start_time=start, end_time=end)
        assert only_values.count() == frame.count() == expected.num_rows
    bounded = read(spark, topic.url, start={0: 1}, end_time=9, partitions=[0])
    assert offsets(bounded) == [(0, 2), (0, 3)]


def test_read_takes_columns_versions_and_headers(spark: SparkSession, filled: distlog.Topic) -> None:
    rows = read(spark, filled.url, ["value", "offset"], version=1).collect()
    assert [row.asDict() for row in rows[:2]] == [{"value": b"0", "offset": 0}, {"value": b"1", "offset": 1}]
    assert len(rows) == 20
    assert read(spark, filled.url, include_headers=True).columns[-1] == "headers"


def test_read_uses_the_snapshot_of_a_topic(spark: SparkSession, s3_url: Address) -> None:
    topic = distlog.create(s3_url.url, storage_options=s3_url.options)
    topic.append([{"value": b"seen"}])
    distlog.open(s3_url.url, storage_options=s3_url.options).append([{"value": b"later"}])
    assert [row.value for row in read(spark, topic).collect()] == [b"seen"]
    assert read(spark, topic.refresh()).count() == 2
    with pytest.raises(distlog.InvalidConfigError, match=r"a Topic has its version"):
        read(spark, topic, version=1)


def test_read_of_a_missing_topic_fails_at_once(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(TopicNotFoundError):
        read(spark, str(tmp_path / "nothing"))


def test_storage_options_may_be_any_values(spark: SparkSession, s3_url: Address) -> None:
    options = {**s3_url.options, "use_ssl": False, "client_kwargs": {"region_name": "us-east-1", "verify": False}}
    distlog.create(s3_url.url, storage_options=options)
    append(people(spark), s3_url.url, value="line", storage_options=options)
    assert read(spark, s3_url.url, storage_options=options).count() == 30


def test_a_session_has_default_settings(spark: SparkSession) -> None:
    names = [name for name in DEFAULTS if name != "spark.log.level"]
    assert {name: spark.conf.get(name) for name in names} == {name: DEFAULTS[name] for name in names}
    assert os.environ["PYSPARK_PYTHON"]
    assert spark.conf.get("spark.ui.showConsoleProgress") == "false"


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings of spark-submit, as `session` reads them."""
    settings: dict[str, str] = {}
    monkeypatch.setattr("distlog.spark.spark_session.SparkConf", lambda: SubmittedSettings(settings))
    return settings


class SubmittedSettings:
    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    def contains(self, name: str) -> bool:
        return name in self._settings


def test_settings_of_spark_submit_override_defaults(submitted: dict[str, str], monkeypatch: Any) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", "/cache")
    submitted["spark.speculation"] = "true"
    defaults = default_settings()
    assert "spark.speculation" not in defaults
    assert defaults["spark.executorEnv.NUMBA_CACHE_DIR"] == "/cache"


def test_spark_connect_gets_only_what_can_be_set_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_REMOTE", "local[2]")
    assert all(name.startswith("spark.sql.") for name in default_settings())


def test_an_append_from_a_thread_or_of_another_session_finds_the_format(
    spark: SparkSession, topic: distlog.Topic
) -> None:
    def rows(session: SparkSession) -> DataFrame:
        return session.range(5).selectExpr("cast(id as string) as value")

    frame, other = rows(spark), spark.newSession()
    register(other)
    with ThreadPoolExecutor(1) as pool:
        results = [pool.submit(append, frame, topic.url).result(), append(rows(other), topic.url)]
    results.append(append(rows(spark), topic.url))
    assert [result.record_count for result in results] == [5, 5, 5]
    assert sum(topic.refresh().end_offsets().values()) == 15


def test_a_read_has_the_active_segments_up_to_their_ends_at_the_call(
    spark: SparkSession, topic: distlog.Topic
) -> None:
    topic.append([{"value": b"sealed", "partition": 0}])
    with topic.writer() as writer:
        for partition in (0, 0, 1):
            writer.append(b"active", partition=partition)
        writer.flush()
        frame, none = read(spark, topic.url), read(spark, topic.url, partitions=[2])
        pinned = read(spark, topic.url, version=topic.version)
        writer.append(b"later", partition=2)
        writer.flush()
        assert sorted(offsets(frame)) == [(0, 0), (0, 1), (0, 2), (1, 0)]
        assert offsets(none) == []
        assert offsets(pinned) == [(0, 0)]


def test_a_scan_becomes_a_frame(spark: SparkSession, filled: distlog.Topic) -> None:
    columns = ["offset", "timestamp_type", "value"]
    scanned = frame(spark, filled.scan(partitions=1, start_time=3000, end_time=12_000, columns=columns))
    assert scanned.columns == ["offset", "timestampType", "value"]
    assert [tuple(row) for row in scanned.orderBy("offset").collect()] == [(i, 0, b"%d" % i) for i in range(3, 12)]
    assert frame(spark, filled.scan(partitions=2)).count() == 0
    assert frame(spark, filled.scan()).schema.fieldNames()[-2:] == ["value", "headers"]

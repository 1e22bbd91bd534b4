"""The topic that users hold: what the README promises of it, on every kind of storage."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Address
from topics import NOW, TINY, Clock, contents, stored, topic_on, values

import distlog
from distlog.core.storage.storage import Storage


def create(address: Address, partitions: int = 1, **config: str) -> distlog.Topic:
    settings = {**TINY, **{name.replace("_", "."): value for name, value in config.items()}}
    return distlog.create(address.url, partitions, settings, address.options)


def reopened(topic: distlog.Topic, address: Address, **at: Any) -> distlog.Topic:
    return distlog.open(topic.url, storage_options=address.options, **at)


@pytest.fixture
def local_url(tmp_path: Path) -> Address:
    return Address(str(tmp_path / "topic"), {})


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (distlog.create, "url, partitions=1, config=None, storage_options=None"),
        (distlog.open, "url, version=None, timestamp=None, storage_options=None"),
        (
            distlog.Topic.append,
            "self, table, partition=None, app_id=None, batch_id=None, compression=None, *, progress=None",
        ),
        (distlog.Topic.transaction, "self, app_id=None, batch_id=None, compression=None"),
        (distlog.Topic.writer, "self, *, linger_ms=100, compression=None, on_delivery=None"),
        (
            distlog.Topic.scan,
            "self, partitions=None, start=None, end=None, start_time=None, end_time=None, columns=None, "
            "isolation='read_uncommitted', out_of_range='fail', max_workers=None",
        ),
        (distlog.Topic.records, "self, partition=0, start=None, limit=None, isolation='read_uncommitted'"),
        (distlog.Topic.read, "self, partition, offset, max_bytes=1048576, *, check_crcs=False"),
        (distlog.Topic.offsets_for_times, "self, times"),
        (distlog.Topic.history, "self, limit=None"),
        (distlog.Topic.alter_config, "self, settings"),
        (distlog.Topic.delete_records, "self, before"),
        (distlog.Topic.rebuild_indexes, "self, *, force=False, dry_run=False"),
        *((getattr(distlog.Topic, name), "self, *, dry_run=False") for name in ("retention", "compact", "vacuum")),
        *((getattr(distlog.Topic, name), "self") for name in ("refresh", "segments", "drop", "verify")),
        *((getattr(distlog.Topic, name), "self") for name in ("start_offsets", "end_offsets")),
    ],
)
def test_the_api_is_what_was_published(function: Any, parameters: str) -> None:
    signature = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    assert str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)) == f"({parameters})"


def test_a_topic_is_made_filled_and_found_again(storage_url: Address) -> None:
    topic = create(storage_url, 2)
    result = topic.append(values(range(100), partition=1))
    assert (result.version, result.offsets, result.record_count, result.replayed) == (1, {1: (0, 100)}, 100, False)
    again = reopened(topic, storage_url)
    assert (again.name, again.version, again.partitions) == (topic.name, 1, 2)
    assert again.config == distlog.TopicConfig.parse(TINY)
    assert contents(again) == contents(topic) == {0: [], 1: [b"v%d" % number for number in range(100)]}
    assert (again.start_offsets(), again.end_offsets()) == ({0: 0, 1: 0}, {0: 0, 1: 100})


def test_a_topic_is_made_once(storage_url: Address) -> None:
    create(storage_url)
    with pytest.raises(distlog.TopicExistsError):
        create(storage_url)


@pytest.mark.parametrize("partitions", [0, -1, 10**6, "4", 1.0, True, None])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: Any, tmp_path: Path) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=r"1 to 100000 partitions|must be a whole number"):
        distlog.create(str(tmp_path / "topic"), partitions)
    assert not list(tmp_path.iterdir())


def test_what_is_wrong_with_a_new_topic_is_said_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=r"did you mean retention\.ms"):
        distlog.create(str(tmp_path / "topic"), config={"retention.msx": 1})
    with pytest.raises(distlog.InvalidTopicError):
        distlog.create(str(tmp_path / "not a name"))
    with pytest.raises(distlog.TopicNotFoundError):
        distlog.open(str(tmp_path / "topic"))
    assert not list(tmp_path.iterdir())


# --- snapshots and time travel


def test_a_topic_stands_still_until_it_is_refreshed_or_appended_to(local_url: Address) -> None:
    writer = create(local_url)
    reader = reopened(writer, local_url)
    writer.append(values([1]))
    assert (contents(reader), contents(writer)) == ({0: []}, {0: [b"v1"]})
    assert reader.refresh() is reader
    assert contents(reader) == {0: [b"v1"]}
    writer.append(values([2]))
    assert reader.append(values([3])).offsets == {0: (2, 3)}
    assert contents(reader) == {0: [b"v1", b"v2", b"v3"]}


def test_a_scan_reads_the_snapshot_it_was_made_from(local_url: Address) -> None:
    topic = create(local_url)
    topic.append(values([1]))
    scan = topic.scan(columns=["value"])
    topic.append(values([2]))
    assert scan.to_table()["value"].to_pylist() == [b"v1"]
    assert (scan.count(), topic.scan().count()) == (1, 2)


def test_every_version_can_be_opened_again_and_is_read_only(storage_url: Address) -> None:
    topic = create(storage_url)
    for number in range(5):
        topic.append(values([number]))
    for version in range(6):
        old = reopened(topic, storage_url, version=version)
        assert (old.version, len(contents(old)[0])) == (version, version)
    for change in (
        lambda: old.append([]),
        lambda: old.writer(),
        lambda: old.transaction(),
        lambda: old.alter_config({}),
        lambda: old.drop(),
        lambda: old.retention(),
        lambda: old.delete_records({0: 1}),
        lambda: old.compact(),
        lambda: old.vacuum(),
        lambda: old.rebuild_indexes(),
    ):
        with pytest.raises(distlog.ReadOnlyTopicError, match="read-only; open it without version"):
            change()
    assert old.refresh().version == 5
    assert old.scan(start=2).count() == 3
    assert topic.refresh().version == 5


@pytest.mark.parametrize("wrong", ["1", 1.5, [1]])
def test_what_is_no_whole_number_is_refused_by_name(local_url: Address, wrong: Any) -> None:
    topic = distlog.create(local_url.url)
    for name, call in (
        ("version", lambda: distlog.open(local_url.url, version=wrong)),
        ("linger_ms", lambda: topic.writer(linger_ms=wrong)),
        ("offset", lambda: topic.scan(start=wrong)),
        ("offset", lambda: topic.scan(end={0: wrong})),
        ("partition", lambda: topic.scan(partitions=[wrong])),
        ("partition", lambda: topic.scan(start={str(wrong): 1})),  # type: ignore[dict-item]
        ("start", lambda: list(topic.records(start=wrong))),
        ("limit", lambda: list(topic.records(limit=wrong))),
        ("offset", lambda: topic.read(0, wrong)),
        ("partition", lambda: topic.read(wrong, 0)),
        ("offset", lambda: topic.delete_records({0: wrong})),
    ):
        with pytest.raises(distlog.InvalidConfigError, match=f"{name} must be a whole number"):
            call()


def test_numpys_numbers_are_as_good_as_pythons(local_url: Address) -> None:
    topic = distlog.create(local_url.url)
    topic.append(values([0, 1, 2]))
    number = np.int64(1)
    assert topic.scan(partitions=[np.int32(0)], start=number, end={0: np.int64(2)}).count() == 1
    assert [record.offset for record in topic.records(start=number)] == [1, 2]
    assert len(topic.read(0, number)) == len(topic.read(0, 1)) > 0
    assert distlog.open(local_url.url, version=number).version == 1


def test_a_time_opens_the_version_of_that_time(local_url: Address) -> None:
    clock = Clock()
    topic = topic_on(Storage(local_url.url), 1, clock=clock)
    for number in range(3):
        clock.now_ms = NOW + 1000 * (number + 1)
        topic.append(values([number]))
    opened = {
        after: reopened(topic, local_url, timestamp=NOW + after).version for after in (0, 999, 1000, 2500, 9999)
    }
    assert opened == {0: 0, 999: 0, 1000: 1, 2500: 2, 9999: 3}
    moment = datetime.fromtimestamp((NOW + 2000) / 1000, timezone.utc)
    assert reopened(topic, local_url, timestamp=moment).version == 2
    assert reopened(topic, local_url, timestamp=moment.isoformat()).version == 2
    with pytest.raises(distlog.OffsetOutOfRangeError, match="did not exist at that time"):
        reopened(topic, local_url, timestamp=NOW - 1)


def test_a_version_that_is_not_there_is_an_error(local_url: Address) -> None:
    topic = create(local_url)
    for version in (-1, 1, 99):
        with pytest.raises(distlog.OffsetOutOfRangeError, match=f"version={version}"):
            reopened(topic, local_url, version=version)
    with pytest.raises(ValueError, match="not both"):
        reopened(topic, local_url, version=0, timestamp=NOW)
    with pytest.raises(ValueError, match="a time must be ms since 1970"):
        reopened(topic, local_url, timestamp="yesterday")


def test_no_thread_takes_a_topic_back_to_an_older_version(local_url: Address) -> None:
    topic = create(local_url)
    before = topic.snapshot
    topic.append(values([1]))
    topic.advance(before)
    assert topic.version == 1


def test_threads_may_share_a_topic(local_url: Address) -> None:
    topic = create(local_url, 2)
    versions: list[list[int | None]] = [[] for _ in range(4)]

    def work(mine: list[int | None]) -> None:
        for _ in range(10):
            mine.append(topic.append(values([7], partition=0)).version)
            assert topic.scan(partitions=[0]).count() >= len(mine)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in versions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(version for mine in versions for version in mine if version) == list(range(1, 41))
    assert all(mine == sorted(mine, key=lambda version: version or 0) for mine in versions)
    assert topic.version == 40
    assert contents(topic)[0] == [b"v7"] * 40


# --- reading


def test_keys_stay_together_and_in_order(local_url: Address) -> None:
    topic = create(local_url, 4)
    for start in range(0, 300, 50):
        topic.append([{"key": b"k%d" % (n % 11), "value": b"%d" % n} for n in range(start, start + 50)])
    rows = topic.scan(columns=["partition", "key", "value"]).to_table().to_pylist()
    homes: dict[bytes, set[int]] = {}
    for row in rows:
        homes.setdefault(row["key"], set()).add(row["partition"])
        assert int(row["value"]) % 11 == int(row["key"][1:])
    assert all(len(partitions) == 1 for partitions in homes.values())
    for key in homes:
        numbers = [int(row["value"]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)
    assert sorted(int(row["value"]) for row in rows) == list(range(300))


def test_a_scan_outside_of_the_log_is_an_error_unless_it_is_told_where_to_begin(local_url: Address) -> None:
    topic = create(local_url)
    topic.append(values(range(5)))
    with pytest.raises(distlog.OffsetOutOfRangeError, match="log_start_offset=0 log_end_offset=5"):
        topic.scan(start=9)
    assert topic.scan(start=9, out_of_range="earliest").count() == 5
    assert topic.scan(start=9, out_of_range="latest").count() == 0
    for wrong in ({"out_of_range": "first"}, {"isolation": "read_commited"}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be one of .*, not "):
            topic.scan(**wrong)  # type: ignore[arg-type]


def test_records_are_python_objects(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append([{"key": "k", "value": None, "timestamp": NOW, "headers": [("h", b"1"), ("h", None)]}], partition=1)
    assert list(topic.records(1)) == [(1, 0, NOW, 0, b"k", None, [("h", b"1"), ("h", None)])]
    topic.append(values(range(50), partition=0))
    assert [record.offset for record in topic.records(start=10, limit=3)] == [10, 11, 12]
    assert [record.value for record in topic.records(0, start=48)] == [b"v48", b"v49"]
    assert list(topic.records(0, start=50)) == []
    for start in (-1, 51):
        with pytest.raises(distlog.OffsetOutOfRangeError):
            next(topic.records(0, start=start))
    with pytest.raises(distlog.TopicNotFoundError, match="partitions 0 to 1"):
        topic.records(2)


def test_a_fetch_loop_reads_everything_once(storage_url: Address) -> None:
    topic = create(storage_url)
    for start in range(0, 60, 20):
        topic.append(values(range(start, start + 20)))
    offset, seen = 0, []
    while offset < 60:
        fetched = topic.read(0, offset, max_bytes=300)
        assert fetched.base_offsets[0] == offset
        assert len(bytes(fetched)) == len(fetched) <= 300
        seen += fetched.base_offsets.tolist()
        offset = fetched.next_offset
    assert seen == sorted(set(seen))
    assert len(topic.read(0, 60)) == 0
    for wrong in (-1, 61):
        with pytest.raises(distlog.OffsetOutOfRangeError, match="log_start_offset=0 log_end_offset=60"):
            topic.read(0, wrong)


def test_times_are_found_by_partition(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values([*range(0, 100, 10), 5, 500, 7], partition=1))
    assert topic.offsets_for_times(NOW + 11) == {0: None, 1: (2, NOW + 20)}
    assert topic.offsets_for_times({1: NOW + 91}) == {1: (11, NOW + 500)}
    assert topic.offsets_for_times(NOW + 501) == {0: None, 1: None}
    assert topic.offsets_for_times(distlog.EARLIEST) == {0: (0, -1), 1: (0, -1)}
    assert topic.offsets_for_times(distlog.LATEST) == {0: (0, -1), 1: (13, -1)}
    assert topic.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: None, 1: (11, NOW + 500)}
    with pytest.raises(distlog.TopicNotFoundError):
        topic.offsets_for_times({2: NOW})
    for wrong in (-4, "soon", None, 1.5):
        with pytest.raises(ValueError, match="a time must be"):
            topic.offsets_for_times(wrong)  # type: ignore[arg-type]


def test_the_largest_timestamp_there_is_can_be_stored_and_found(
    local_url: Address, caplog: pytest.LogCaptureFixture
) -> None:
    topic = distlog.create(local_url.url, config={"message.timestamp.after.max.ms": 2**63 - 1})
    large = b"x" * 100_000  # so that the indexes are worth asking
    topic.append([{"value": large, "timestamp": time} for time in (0, 2**63 - 1, -1, 5)])
    assert [record.timestamp for record in topic.records()] == [0, 2**63 - 1, -1, 5]
    assert topic.offsets_for_times(2**63 - 1) == topic.offsets_for_times(distlog.MAX_TIMESTAMP) == {0: (1, 2**63 - 1)}
    assert caplog.messages == []  # its index is sane


def test_a_scans_table_can_be_appended_as_it_is(storage_url: Address) -> None:
    topic = create(storage_url, 3)
    rows = [
        {"key": None, "value": b"a", "timestamp": -1, "headers": None},
        {"key": b"k", "value": None, "timestamp": NOW, "headers": [("h", None), ("é", b"\xff")]},
    ]
    for partition in (0, 2):
        topic.append(rows, partition)
    once = topic.scan().to_table()
    topic.append(once)
    for partition in (0, 2):
        twice = stored(topic.scan([partition]).to_table())
        assert [row.pop("offset") for row in twice] == [0, 1, 2, 3]
        assert twice[:2] == twice[2:]


def test_a_stream_is_appended_in_bounded_memory(local_url: Address) -> None:
    topic = distlog.create(local_url.url, 4)
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    largest = 0

    def stream() -> Iterator[pa.RecordBatch]:
        nonlocal largest
        for number in range(100):
            # one partition in a thousand rows: its slices must not keep all the others alive
            keys = pa.array([b"rare" if row % 1000 == 0 else b"k%d" % (row % 3) for row in range(2000)], pa.binary())
            batch = pa.RecordBatch.from_arrays([keys, pa.array([b"%1000d" % number] * 2000)], schema=schema)
            largest = max(largest, pa.total_allocated_bytes())
            yield batch

    before = pa.total_allocated_bytes()
    result = topic.append(pa.RecordBatchReader.from_batches(schema, stream()))
    assert result.record_count == 200_000
    assert largest - before < 60 << 20  # of 200 MB


# --- metadata


def test_history_tells_who_did_what(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values(range(3), partition=0), app_id="app", batch_id=7)
    topic.alter_config({"retention.ms": 1000})
    rows = topic.history().to_pylist()
    assert [(row["version"], row["operation"]) for row in rows] == [(2, "config"), (1, "append"), (0, "create")]
    assert (rows[1]["app_id"], rows[1]["batch_id"], rows[1]["records_added"]) == ("app", "7", 3)
    assert "distlog" in rows[1]["writer"]
    assert topic.history(limit=2).to_pylist() == rows[:2]
    assert topic.history(limit=0).num_rows == 0


def test_segments_are_a_table_of_what_the_snapshot_holds(local_url: Address) -> None:
    topic = create(local_url, 3)
    topic.append(values(range(60), partition=0))
    topic.append(values(range(60), partition=2))
    table = topic.segments()
    assert table.num_rows == sum(len(state.segments) for state in topic.snapshot.partitions) == 4
    assert table["partition"].to_pylist() == sorted(table["partition"].to_pylist())
    assert table["log_bytes"].to_pylist() == [
        Path(topic.url, f"{topic.name}-{row['partition']}", f"{row['stem']}.log").stat().st_size
        for row in table.to_pylist()
    ]


def test_settings_are_changed_one_by_one_and_hold_for_the_next_append(storage_url: Address) -> None:
    topic = create(storage_url)
    other = reopened(topic, storage_url)
    assert topic.alter_config({"compression.type": "zstd"}).compression_type == "zstd"
    assert other.alter_config({"internal.segment.bytes": None, "retention.ms": 1000}).compression_type == "zstd"
    topic.append(values(range(100)))
    assert topic.config.overrides() == {
        "batch.bytes": "150",
        "compression.type": "zstd",
        "index.interval.bytes": "100",
        "retention.ms": "1000",
    }
    assert set(topic.segments()["compression"].to_pylist()) == {"zstd"}
    assert topic.segments().num_rows == 1
    assert reopened(topic, storage_url).config == topic.config


@pytest.mark.parametrize("settings", [{"retention.msx": 1}, {"retention.msx": None}, {"retention.ms": "x"}])
def test_settings_that_cannot_be_change_nothing(settings: dict[str, Any], local_url: Address) -> None:
    topic = create(local_url)
    with pytest.raises(distlog.InvalidConfigError):
        topic.alter_config(settings)
    assert topic.refresh().version == 0


def test_a_dropped_topic_is_gone_and_its_address_free(storage_url: Address) -> None:
    topic = create(storage_url)
    topic.append(values([1, 2]))
    old = reopened(topic, storage_url)
    topic.drop()
    with pytest.raises(distlog.TopicNotFoundError):
        reopened(topic, storage_url)
    for gone in (topic, old):
        assert contents(gone) == {0: [b"v1", b"v2"]}
        with pytest.raises(distlog.TopicNotFoundError, match="the topic was dropped"):
            gone.append(values([3]))
        with pytest.raises(distlog.CommitConflictError, match="the topic was dropped"):
            gone.drop()
    again = create(storage_url, 2)
    assert (again.version, contents(again)) == (3, {0: [], 1: []})
    for gone in (topic, old):
        with pytest.raises(distlog.TopicNotFoundError):
            gone.append(values([3]))
        with pytest.raises(distlog.CommitConflictError):
            gone.alter_config({"retention.ms": 1})
    assert contents(again.refresh()) == {0: [], 1: []}


# --- how it shows and travels


def test_a_pickled_topic_opens_the_same_version_again(storage_url: Address) -> None:
    topic = create(storage_url)
    topic.append(values([1]))
    pickled, pinned = pickle.dumps(topic), pickle.dumps(reopened(topic, storage_url, version=1))
    topic.append(values([2]))
    copy = pickle.loads(pickled)
    assert (copy.url, copy.version, contents(copy)) == (topic.url, 1, {0: [b"v1"]})
    assert copy.append(values([3])).offsets == {0: (2, 3)}
    old = pickle.loads(pinned)
    assert old.refresh().version == 1
    with pytest.raises(distlog.DistlogError, match="read-only"):
        old.append([])


@pytest.mark.s3
def test_no_secret_shows(s3_url: Address) -> None:
    topic = create(s3_url)
    topic.append(values(range(10)))
    with pytest.raises(distlog.DistlogError) as missing:
        distlog.open(f"{s3_url.url}/nothing", storage_options=s3_url.options)
    with pytest.raises(distlog.DistlogError) as taken:
        create(s3_url)
    shown = [
        repr(topic),
        str(topic),
        topic._repr_html_(),
        repr(topic.scan()),
        repr(topic.storage),
        str(topic.history()),
    ]
    shown += [repr(each.value) + str(each.value) for each in (missing, taken)]
    shown += [repr(vars(topic)), repr(topic.writer()), repr(topic.reader)]
    for secret in (s3_url.options["secret"], s3_url.options["key"]):
        assert [text for text in shown if secret in text] == []


def test_a_topic_shows_itself(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values(range(3), partition=1))
    assert repr(topic) == f"Topic({topic.url!r}, version=1, partitions=2)"
    assert "<td>1</td><td>0</td><td>3</td>" in topic._repr_html_()
    assert repr(topic.scan(columns=["value"])).startswith("Scan(segments=")

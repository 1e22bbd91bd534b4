"""The topic of the API: its methods, metadata and settings, on every kind of storage."""

from __future__ import annotations

import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
from addressed_topics import create, reopened
from addresses import Address
from topics import TINY, contents, values

import distlog
from distlog.core.storage.storage import Storage


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        (distlog.create, "url, partitions=1, config=None, storage_options=None"),
        (distlog.open, "url, version=None, timestamp=None, storage_options=None"),
        (
            distlog.Topic.append,
            "self, table, partition=None, app_id=None, batch_id=None, compression=None, *, timestamp_unit='ms', "
            "progress=None",
        ),
        (distlog.Topic.transaction, "self, app_id=None, batch_id=None, compression=None, *, timestamp_unit='ms'"),
        (distlog.Topic.writer, "self, *, linger_ms=100, compression=None, on_delivery=None, timestamp_unit='ms'"),
        (
            distlog.Topic.scan,
            "self, partitions=None, start=None, end=None, start_time=None, end_time=None, columns=None, "
            "isolation='read_uncommitted', out_of_range='fail', max_workers=None, keys=None",
        ),
        (distlog.Topic.get, "self, keys, isolation='read_committed'"),
        (distlog.Topic.records, "self, partition=0, start=None, limit=None, isolation='read_uncommitted'"),
        (
            distlog.Topic.read,
            "self, partition, offset, max_bytes=1048576, *, isolation='read_uncommitted', check_crcs=False",
        ),
        (distlog.Topic.offsets_for_times, "self, times"),
        (distlog.Topic.history, "self, limit=None"),
        (distlog.Topic.alter_config, "self, settings"),
        (distlog.Topic.delete_records, "self, offsets"),
        (distlog.Topic.rebuild_indexes, "self, *, force=False, dry_run=False, executor=None"),
        *((getattr(distlog.Topic, name), "self, *, dry_run=False") for name in ("retention", "vacuum")),
        (distlog.Topic.compact, "self, *, dry_run=False, executor=None, dedupe_buffer_bytes=134217728, memory=None"),
        *((getattr(distlog.Topic, name), "self") for name in ("refresh", "segments", "drop")),
        *((getattr(distlog.Topic, name), "self") for name in ("start_offsets", "end_offsets")),
    ],
)
def test_the_api_is_as_published(function: Any, parameters: str) -> None:
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    assert str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty)) == f"({parameters})"


def test_a_topic_is_created_filled_and_opened(storage_url: Address) -> None:
    topic = create(storage_url, 2)
    result = topic.append(values(range(100), partition=1))
    assert (result.version, result.offsets, result.record_count, result.replayed) == (1, {1: (0, 100)}, 100, False)
    again = reopened(topic, storage_url)
    assert (again.name, again.version, again.partitions) == (topic.name, 1, 2)
    assert again.config == distlog.TopicConfig.parse(TINY)
    assert contents(again) == contents(topic) == {0: [], 1: [b"v%d" % number for number in range(100)]}
    assert (again.start_offsets(), again.end_offsets()) == ({0: 0, 1: 0}, {0: 0, 1: 100})


def test_a_topic_can_be_created_once(storage_url: Address) -> None:
    create(storage_url)
    with pytest.raises(distlog.TopicExistsError):
        create(storage_url)


def test_a_folder_with_or_in_a_topic_cannot_become_a_topic(storage_url: Address) -> None:
    root, options = storage_url.url, storage_url.options
    for name in ("clicks", "views"):
        distlog.create(f"{root}/{name}", storage_options=options)
    for make in (distlog.create, distlog.open_or_create):
        with pytest.raises(distlog.InvalidTopicError, match=r"create one in it, as .*/NAME \(topics=clicks, vi"):
            make(root, storage_options=options)
        with pytest.raises(distlog.InvalidTopicError, match=r"lies in a topic: .* \(topic=.*/clicks\)"):
            make(f"{root}/clicks/inner", storage_options=options)
    assert [topic.name for topic in distlog.topics(root, options)] == ["clicks", "views"]
    with pytest.raises(distlog.TopicExistsError):
        distlog.create(f"{root}/clicks", storage_options=options)


@pytest.mark.parametrize("name", ["_commits", "_groups"])
def test_a_topic_cannot_have_a_hidden_name(name: str, storage_url: Address) -> None:
    with pytest.raises(distlog.InvalidTopicError, match=r"the name of a folder of distlog's own: choose another"):
        distlog.create(f"{storage_url.url}/{name}", storage_options=storage_url.options)
    assert Storage(*storage_url).list_folders() == []


def test_dropped_topics_free_their_folder(storage_url: Address) -> None:
    root, options = storage_url.url, storage_url.options
    distlog.create(f"{root}/clicks", storage_options=options).drop()
    distlog.create(f"{root}/clicks/inner", storage_options=options).drop()
    assert distlog.create(f"{root}/clicks", storage_options=options).version > 0
    distlog.open(f"{root}/clicks", storage_options=options).drop()
    assert distlog.create(root, storage_options=options).version == 0


def test_topics_two_levels_away_are_found(storage_url: Address) -> None:
    root, options = storage_url.url, storage_url.options
    distlog.create(f"{root}/logs/clicks", storage_options=options)
    with pytest.raises(distlog.InvalidTopicError, match=r"this folder holds topics.*topics=logs/clicks"):
        distlog.create(root, storage_options=options)
    with pytest.raises(distlog.InvalidTopicError, match=r"lies in a topic.*topic=.*/logs/clicks\)"):
        distlog.create(f"{root}/logs/clicks/a/b", storage_options=options)


def test_checking_a_new_address_is_one_request(memory_url: Address) -> None:
    distlog.create(f"{memory_url.url}/a")
    counters = distlog.create(f"{memory_url.url}/b").storage.counters
    # with the list of the folder above there are two lists, since the list of commits is skipped
    assert (counters.gets, counters.lists, counters.puts, counters.deletes) == (6, 2, 2, 1)


@pytest.mark.parametrize("partitions", [0, -1, 10**6, "4", 1.0, True, None])
def test_a_number_of_partitions_that_cannot_be_is_refused(partitions: Any, tmp_path: Path) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=r"1 to 100000 partitions|must be a whole number"):
        distlog.create(str(tmp_path / "topic"), partitions)
    assert not list(tmp_path.iterdir())


def test_an_invalid_new_topic_is_refused_before_writing(tmp_path: Path) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=r"did you mean retention\.ms"):
        distlog.create(str(tmp_path / "topic"), config={"retention.msx": 1})
    with pytest.raises(distlog.InvalidTopicError):
        distlog.create(str(tmp_path / "not a name"))
    with pytest.raises(distlog.TopicNotFoundError):
        distlog.open(str(tmp_path / "topic"))
    assert not list(tmp_path.iterdir())


def test_history_has_operations_and_writers(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values(range(3), partition=0), app_id="app", batch_id=7)
    topic.alter_config({"retention.ms": 1000})
    rows = topic.history().to_pylist()
    assert [(row["version"], row["operation"]) for row in rows] == [(2, "config"), (1, "append"), (0, "create")]
    assert (rows[1]["app_id"], rows[1]["batch_id"], rows[1]["records_added"]) == ("app", "7", 3)
    assert "distlog" in rows[1]["writer"]
    assert topic.history(limit=2).to_pylist() == rows[:2]
    assert topic.history(limit=0).num_rows == 0


def test_segments_are_a_table_of_the_snapshot(local_url: Address) -> None:
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
def test_invalid_settings_change_nothing(settings: dict[str, Any], local_url: Address) -> None:
    topic = create(local_url)
    with pytest.raises(distlog.InvalidConfigError):
        topic.alter_config(settings)
    assert topic.refresh().version == 0


def test_a_dropped_topic_frees_its_address(storage_url: Address) -> None:
    topic = create(storage_url)
    topic.append(values([1, 2]))
    old = reopened(topic, storage_url)
    topic.drop()
    with pytest.raises(distlog.TopicNotFoundError):
        reopened(topic, storage_url)
    for dropped in (topic, old):
        assert contents(dropped) == {0: [b"v1", b"v2"]}
        with pytest.raises(distlog.TopicNotFoundError, match="the topic was dropped"):
            dropped.append(values([3]))
        with pytest.raises(distlog.CommitConflictError, match="the topic was dropped"):
            dropped.drop()
    again = create(storage_url, 2)
    assert (again.version, contents(again)) == (3, {0: [], 1: []})
    for dropped in (topic, old):
        with pytest.raises(distlog.TopicNotFoundError):
            dropped.append(values([3]))
        with pytest.raises(distlog.CommitConflictError):
            dropped.alter_config({"retention.ms": 1})
    assert contents(again.refresh()) == {0: [], 1: []}


def test_objects_of_one_process_refuse_to_pickle_with_advice(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    for handle in (topic.writer(), topic.producer("billing"), topic.consume()):
        with (
            handle,
            pytest.raises(
                TypeError,
                match=rf"a {type(handle).__name__} (belongs to one process|cannot be pickled): pickle its topic",
            ),
        ):
            pickle.dumps(handle)


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
def test_no_secret_is_shown_by_a_topic(s3_url: Address) -> None:
    topic = create(s3_url)
    topic.append(values(range(10)))
    with pytest.raises(distlog.DistlogError) as missing:
        distlog.open(f"{s3_url.url}/nothing", storage_options=s3_url.options)
    with pytest.raises(distlog.DistlogError) as exists:
        create(s3_url)
    shown = [
        repr(topic),
        str(topic),
        topic._repr_html_(),
        repr(topic.scan()),
        repr(topic.storage),
        str(topic.history()),
    ]
    shown += [repr(error.value) + str(error.value) for error in (missing, exists)]
    shown += [repr(vars(topic)), repr(topic.writer()), repr(topic.reader)]
    for secret in (s3_url.options["secret"], s3_url.options["key"]):
        assert [text for text in shown if secret in text] == []


def test_a_topic_shows_itself(local_url: Address) -> None:
    topic = create(local_url, 2)
    topic.append(values(range(3), partition=1))
    assert repr(topic) == f"Topic({topic.url!r}, version=1, partitions=2)"
    assert "<td>1</td><td>0</td><td>3</td>" in topic._repr_html_()
    assert repr(topic.scan(columns=["value"])).startswith("Scan(segments=")

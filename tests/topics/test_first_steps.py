"""The first inputs of a new user work, or the error gives the right input."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import distlog
from distlog.core import DISTRIBUTION

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=timezone.utc)
MS = 1_767_323_045_678


@pytest.fixture
def topic(tmp_path: Path) -> distlog.Topic:
    return distlog.create(str(tmp_path / "clicks"), partitions=2, config={"retention.ms": -1})


def times(topic: distlog.Topic) -> list[int]:
    return topic.scan(columns="timestamp").to_table()["timestamp"].cast("int64").to_pylist()


def test_the_library_has_a_version() -> None:
    assert distlog.__version__ == metadata.version(DISTRIBUTION)


@pytest.mark.parametrize(
    "time",
    [
        MOMENT,
        "2026-01-02T03:04:05.678Z",
        "2026-01-02 03:04:05.678",
        "2026-01-02T04:04:05.678+01:00",
        np.datetime64("2026-01-02T03:04:05.678"),
        np.datetime64("2026-01-02T03:04:05.678901234"),
    ],
)
def test_a_record_accepts_times_of_python_numpy_and_iso(topic: distlog.Topic, time: Any) -> None:
    topic.append([{"value": "v", "timestamp": time}])
    with topic.writer() as writer:
        writer.append("v", timestamp=time)
    assert times(topic.refresh()) == [MS, MS]


@pytest.mark.parametrize("time", ["pandas", np.datetime64("NaT")])
def test_a_missing_time_is_now(topic: distlog.Topic, time: Any) -> None:
    missing = pytest.importorskip("pandas").NaT if time == "pandas" else time
    topic.append([{"value": "v", "timestamp": missing}])
    assert times(topic)[0] > MS


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (["2026-01-02T03:04:05.678Z", "2026-01-02T04:04:05.678901+01:00", None], [MS, MS]),
        (["2026-01-02T03:04:05.678", "2026-01-02"], [MS, 1_767_312_000_000]),
        (pa.array(["2026-01-02T03:04:05.678901234Z"], pa.large_string()), [MS]),
    ],
)
def test_a_column_of_iso_texts_is_a_column_of_times(topic: distlog.Topic, column: Any, expected: list[int]) -> None:
    topic.append(pa.table({"value": ["v"] * len(column), "timestamp": column}), partition=0)
    assert times(topic)[: len(expected)] == expected


def test_an_invalid_time_is_named_with_its_row(topic: distlog.Topic) -> None:
    with pytest.raises(distlog.InvalidRecordError, match=r"ISO 8601.*row=1.*'soon'"):
        topic.append([{"value": "v"}, {"value": "v", "timestamp": "soon"}])
    with pytest.raises(distlog.InvalidRecordError, match=r"column timestamp must be .*ISO 8601"):
        topic.append(pa.table({"value": ["v"], "timestamp": ["soon"]}))


def test_a_number_of_partitions_is_a_number(tmp_path: Path) -> None:
    assert distlog.create(str(tmp_path / "a"), partitions=np.int64(3)).partitions == 3  # type: ignore[arg-type]
    for wrong in ("4", 2.5, True):
        with pytest.raises(distlog.InvalidConfigError, match="partitions must be a whole number"):
            distlog.create(str(tmp_path / "b"), partitions=wrong)  # type: ignore[arg-type]


def test_a_file_instead_of_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "clicks").write_text("a file")
    for address in (tmp_path / "clicks", tmp_path / "clicks" / "inner"):
        for do in (distlog.open, distlog.create):
            with pytest.raises(distlog.StorageError, match=r"a part of the path is a file.*file=.*/clicks"):
                do(str(address))


@pytest.mark.parametrize("offsets", [100, [100], None])
def test_offsets_to_delete_records_before_are_a_dict(topic: distlog.Topic, offsets: Any) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=r"offsets must be a dict by partition, as in \{0: 100\}"):
        topic.delete_records(offsets)


def test_one_column_and_one_partition_need_no_list(topic: distlog.Topic) -> None:
    topic.append([{"value": "zero", "partition": 0}, {"value": "one", "partition": 1}])
    assert topic.scan(partitions=1, columns="value").to_table().to_pydict() == {"value": [b"one"]}
    with topic.consume(partitions=1, columns="value", timeout=0) as consumer:
        assert [value for batch in consumer for value in batch["value"].to_pylist()] == [b"one"]
    with pytest.raises(distlog.InvalidRecordError, match="no column colour: choose from partition, offset"):
        topic.scan(columns="colour")


@pytest.mark.parametrize("config", [["retention.ms=1"], "retention.ms=1", [("retention.ms", 1)], 5])
def test_settings_other_than_a_mapping_are_refused_with_an_example(tmp_path: Path, config: Any) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=re.escape("config={'retention.ms': 604800000}")):
        distlog.create(str(tmp_path / "a"), config=config)


def test_changed_settings_are_a_mapping(topic: distlog.Topic) -> None:
    with pytest.raises(distlog.InvalidConfigError, match=re.escape("{'retention.ms': 604800000}")):
        topic.alter_config(["retention.ms=1"])  # type: ignore[arg-type]


def test_a_dropped_topic_is_vacuumed_and_the_report_comes_back(topic: distlog.Topic) -> None:
    topic.append([{"value": "v"}])
    topic.alter_config({"file.delete.delay.ms": 0})
    topic.drop()
    assert len(topic.vacuum().files) > 0

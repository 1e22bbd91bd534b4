"""Numbers that are times: of which unit they are, and who is told when they are taken for another."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import distlog

MS = 1_700_000_000_123
UNITS = {"s": MS // 1000, "ms": MS, "us": MS * 1000 + 999, "ns": MS * 1_000_000 + 999}
EXPECTED = {unit: MS // 1000 * 1000 if unit == "s" else MS for unit in UNITS}
OLD = {"message.timestamp.before.max.ms": 2**62, "retention.ms": -1}


@pytest.fixture(params=["local", "memory"])
def topic(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[distlog.Topic]:
    """A topic where appends are in place, or commits; a warning that no test expects is an error."""
    root = tmp_path if request.param == "local" else f"memory://units-{request.node.name}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield distlog.create(f"{root}/clicks", config=OLD)


def times(topic: distlog.Topic) -> list[int]:
    return topic.refresh().scan(columns=["timestamp"]).to_table()["timestamp"].cast("int64").to_pylist()


@pytest.mark.parametrize("unit", UNITS)
def test_a_number_counts_the_unit_that_is_named(topic: distlog.Topic, unit: str) -> None:
    number, date = UNITS[unit], datetime.fromtimestamp(5e8 * 2, timezone.utc)
    topic.append([{"value": "plain", "timestamp": number}, {"value": "none", "timestamp": -1}], timestamp_unit=unit)
    topic.append(
        [{"value": "v", "timestamp": time} for time in (number, str(number), date, "2001-09-09T01:46:40Z")],
        timestamp_unit=unit,
    )
    topic.append(pa.table({"value": ["a", "b"], "timestamp": pa.array([number, -1])}), timestamp_unit=unit)
    topic.append(pa.table({"value": ["a"], "timestamp": pa.array([date])}), timestamp_unit=unit)
    with topic.writer(timestamp_unit=unit) as writer:
        writer.append("v", timestamp=number)
        writer.append("v", timestamp=date)
    same = EXPECTED[unit]
    assert times(topic) == [same, -1, same, same, 10**12, 10**12, same, -1, 10**12, same, 10**12]


def test_a_unit_that_there_is_not_is_refused_before_anything_is_written(topic: distlog.Topic) -> None:
    opened: list[Callable[..., Any]] = [topic.transaction, topic.writer, topic.producer]
    for begin in opened:
        with pytest.raises(distlog.InvalidConfigError, match="a time's unit is one of s, ms, us, ns"):
            begin(timestamp_unit="seconds")
    assert topic.refresh().version == 0


def test_milliseconds_that_are_called_seconds_are_refused(topic: distlog.Topic) -> None:
    mixed = [{"value": "v", "timestamp": None}, {"value": "v", "timestamp": MS}]
    for rows in (mixed, pa.Table.from_pylist(mixed), [*mixed, {"value": "v", "timestamp": "2020-01-01"}]):
        with pytest.raises(distlog.InvalidRecordError, match=r"looks like milliseconds: give the unit, ms.*row=1"):
            topic.append(rows, timestamp_unit="s")


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1.7e9]), "int64 milliseconds.*multiply seconds by 1000"),
        (pa.array([-315_619_200]), "milliseconds since 1970, and this is before 1970"),
        (pa.array([datetime(1960, 1, 1)]), "milliseconds since 1970, and this is before 1970"),
    ],
)
@pytest.mark.parametrize("unit", ["ms", "s", "us"])
def test_fractions_and_times_before_1970_are_refused_by_their_unit(
    topic: distlog.Topic, column: pa.Array, words: str, unit: str
) -> None:
    with pytest.raises(distlog.InvalidRecordError, match=words):
        topic.append(pa.table({"value": ["v"], "timestamp": column}), timestamp_unit=unit)


def test_who_appends_seconds_as_milliseconds_is_told_once_for_each_topic(topic: distlog.Topic) -> None:
    rows = [{"value": "v", "timestamp": MS}, {"value": "v", "timestamp": MS // 1000}]
    words = r"clicks: .* 1970-01-20T.*1700000000 .*looks like seconds"
    with pytest.warns(distlog.TimestampWarning, match=words) as told:
        topic.append(rows)
    # a second one would be an error
    topic.append(rows)
    with topic.writer() as writer:
        writer.append("v", timestamp=MS // 1000)
    assert [(each.category, each.filename) for each in told] == [(distlog.TimestampWarning, __file__)]


def test_a_writer_tells_before_it_takes_the_record(topic: distlog.Topic) -> None:
    with topic.writer() as writer:
        with pytest.raises(distlog.TimestampWarning, match="before 1990"):
            writer.append("v", timestamp=MS // 1000)
        writer.append("v", timestamp=MS)
    assert times(topic) == [MS]


def test_where_warnings_are_errors_nothing_is_appended(topic: distlog.Topic) -> None:
    with pytest.raises(distlog.TimestampWarning, match="before 1990"):
        topic.append([{"value": "v", "timestamp": MS // 1000}])
    assert topic.refresh().version == 0


def test_usual_times_and_none_are_no_reason_to_warn(topic: distlog.Topic) -> None:
    # a warning would be an error
    topic.append([{"value": "v", "timestamp": 631_152_000_000}, {"value": "v", "timestamp": -1}])
    with pytest.warns(distlog.TimestampWarning, match="1989-12-31T23:59:59.999Z.*taken for milliseconds; if"):
        topic.append([{"value": "v", "timestamp": 631_151_999_999}])

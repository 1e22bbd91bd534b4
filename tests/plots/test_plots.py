"""Plots of topics and scans: right counts, reads of metadata only, and any topic."""

from __future__ import annotations

import io
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from topics import NOW, topic_on

import distlog
from distlog.core.config import DAY_MS
from distlog.core.display import MOST_BINS, SegmentColumns, TimeBins
from distlog.core.storage.storage import Storage

matplotlib = pytest.importorskip("matplotlib")


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """No figure is open before or after, and none needs a screen."""
    matplotlib.use("Agg")
    yield (pyplot := pytest.importorskip("matplotlib.pyplot"))
    pyplot.close("all")


def new_topic(partitions: int, **config: Any) -> distlog.Topic:
    return topic_on(Storage(f"memory://{uuid.uuid4().hex}/clicks"), partitions, {"retention.ms": -1, **config})


def filled(partitions: int = 3, **config: Any) -> distlog.Topic:
    """Return a topic with a hundred records on each of ten days; partitions alternate by day, and differ in size."""
    topic = new_topic(partitions, **config)
    for day in range(10):
        times = NOW - DAY_MS * (10 - day) + np.arange(100) * 1000
        topic.append(pa.table({"value": ["x" * 50] * 100, "timestamp": times}), partition=day % partitions)
    return topic


def panels(figure: Any) -> dict[str, Any]:
    return {axes.get_title(loc="left"): axes for axes in figure.axes}


def texts(figure: Any) -> str:
    """Return all texts of a figure after it was drawn."""
    figure.savefig(io.BytesIO(), format="png")
    return " | ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text())


def test_a_topic_is_drawn_from_its_metadata() -> None:
    topic = filled()
    old_gets = topic.storage.counters.gets
    figure = topic.plot()
    assert topic.storage.counters.gets == old_gets
    assert list(panels(figure)) == ["Records over time", "Bytes by partition", "Segment ages"]
    bars = [bar.get_height() for bar in panels(figure)["Bytes by partition"].patches]
    assert bars == [int(state.segments.log_bytes.sum()) for state in topic.snapshot.partitions]
    shown = texts(figure)
    assert "clicks, version 10: 1,000 records" in shown
    assert "the largest is 1.20 times the mean" in shown
    assert "retention.ms = -1: no limit" in shown
    labels = {title: (axes.get_xlabel(), axes.get_ylabel()) for title, axes in panels(figure).items()}
    assert labels == {
        "Records over time": ("time of the records, UTC", "records per 3 hours"),
        "Bytes by partition": ("partition", "bytes in the log"),
        "Segment ages": ("age of the segment's newest record, days", "bytes in segments"),
    }


@pytest.mark.long
@pytest.mark.parametrize("exact", [True, False])
def test_all_records_are_in_the_plot(exact: bool) -> None:
    for figure in (filled().plot(exact=exact), filled().scan().plot(exact=exact)):
        (stairs,) = panels(figure)["Records over time"].patches
        assert stairs.get_data().values.sum() == pytest.approx(1000)
        assert ("spread evenly" in texts(figure)) != exact


def test_exact_counts_equal_the_records() -> None:
    topic = new_topic(1)
    topic.append(pa.table({"value": ["x"] * 3, "timestamp": [NOW, NOW, NOW + 50_000]}))
    (exact,) = panels(topic.plot(exact=True))["Records over time"].patches
    counts = exact.get_data().values
    assert (counts[0], counts[-1], counts.sum()) == (2, 1, 3)
    (spread,) = panels(topic.plot())["Records over time"].patches
    assert spread.get_data().values.max() < 0.1


def test_the_next_deletions_of_retention_are_red() -> None:
    topic = filled()
    topic.alter_config({"retention.ms": 5 * DAY_MS - 200_000})
    figure = topic.plot()
    ages = panels(figure)["Segment ages"]
    remaining, expired = (sum(bar.get_height() for bar in bars) for bars in ages.containers)
    assert expired == pytest.approx(1.5 * remaining, rel=0.01)
    assert "the next retention deletes it" in texts(figure)
    report = topic.retention(dry_run=True)
    assert expired == report.to_dict()["bytes"]


@pytest.mark.long
@pytest.mark.parametrize("partitions", [1, 2, 200])
def test_any_number_of_partitions_is_drawn(partitions: int) -> None:
    figure = filled(partitions).plot()
    assert len(panels(figure)["Bytes by partition"].patches) == partitions
    texts(figure)


def test_an_empty_topic_is_labelled() -> None:
    topic = new_topic(3)
    for figure in (topic.plot(), topic.plot(exact=True), topic.scan().plot()):
        assert "no records with a time | " in texts(figure)


@pytest.mark.long
@pytest.mark.parametrize("times", [[NOW], [0], [2**62], [0, 2**62], [-1]])
def test_odd_times_are_drawn(times: list[int]) -> None:
    topic = new_topic(1, **{"message.timestamp.after.max.ms": 2**63 - 1})
    topic.append(pa.table({"value": ["x"] * len(times), "timestamp": times}))
    for exact in (True, False):
        texts(topic.plot(exact=exact))


def test_a_scan_is_drawn_as_far_as_it_goes() -> None:
    topic = filled()
    figure = topic.scan(partitions=[0, 2], start_time=NOW - 5 * DAY_MS).plot()
    assert len(panels(figure)["Bytes by partition"].patches) == 2
    (stairs,) = panels(figure)["Records over time"].patches
    assert stairs.get_data().values.sum() == pytest.approx(len(topic.scan([0, 2], start_time=NOW - 5 * DAY_MS)))


@pytest.mark.parametrize(("first", "last"), [(NOW, NOW), (NOW, NOW + 1), (0, NOW), (NOW, NOW + 7 * DAY_MS)])
def test_bins_hold_all_times_and_are_not_too_many(first: int, last: int) -> None:
    bins = TimeBins.over(first, last)
    assert bins.edges_ms[0] <= first <= last < bins.edges_ms[-1]
    assert bins.count <= MOST_BINS
    single = np.array([1])
    fields = SegmentColumns(single, single, single * 7, single, np.array([first]), np.array([last]))
    assert bins.spread(fields).sum() == pytest.approx(7)


def test_a_notebook_shows_a_picture_once(closed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_topic(1)
    topic.plot()
    assert len(closed.get_fignums()) == 1
    monkeypatch.setattr(closed, "get_backend", lambda: "inline")
    topic.plot()
    assert len(closed.get_fignums()) == 1


def test_a_missing_matplotlib_fails_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ModuleNotFoundError, match=r"plot\(\) needs .*: pip install 'pydistlog\[plot\]'"):
        new_topic(1).plot()

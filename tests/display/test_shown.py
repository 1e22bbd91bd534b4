"""Metadata, reports and settings show themselves: as tables in a notebook, as short text elsewhere."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from topics import NOW, Clock, topic_on, values

import distlog
from distlog.core import display
from distlog.core.config import DAY_MS, TopicConfig
from distlog.core.display import Listing
from distlog.core.storage.storage import Storage

MOMENT = datetime.fromtimestamp(NOW / 1000, timezone.utc)


@pytest.fixture
def topic() -> distlog.Topic:
    new_topic = topic_on(Storage(f"memory://{uuid.uuid4().hex}/clicks"), 2)
    new_topic.append(values(range(3), partition=1), app_id="<b>", batch_id=1)
    return new_topic


def test_a_listing_is_lines_with_numbers_to_the_right() -> None:
    table = pa.table({"name": ["a", None], "bytes": [5, 12_000_000], "time": pa.array([NOW, 0], pa.timestamp("ms"))})
    assert repr(Listing(table, "files")) == (
        "files: 2\n"
        "name    bytes  time\n"
        "a         5 B  2023-11-14T22:13:20.000Z\n"
        "      12.0 MB  1970-01-01T00:00:00.000Z"
    )


def test_a_long_table_shows_both_ends() -> None:
    table = pa.table({"number": range(2000)})
    assert display.lines(table, most=5).split() == ["number", "0", "1", "2", "…", "1,998", "1,999"]
    assert display.html(table).count("<tr>") == 22
    assert display.lines(table.slice(0, 5), most=5).split() == ["number", *"01234"]
    assert display.lines(table.slice(0, 0)) == "number"


def test_cells_are_short_and_escaped() -> None:
    table = pa.table({"x": ["<script>", "\x1b[31mred", "y" * 100, b"\xff".decode("latin1")]})
    assert "<script>" not in display.html(table)
    assert "\x1b" not in display.lines(table)
    assert max(map(len, display.lines(table).splitlines())) == 60
    assert display.lines(pa.table({"b": [b"\xffk"]})).splitlines() == ["b", "\\xffk"]


def test_history_and_segments_are_listings_with_times(topic: distlog.Topic) -> None:
    for listing, title in ((topic.history(), "commits: 2"), (topic.segments(), "segments: 1")):
        assert repr(listing).startswith(title)
        assert len(repr(listing).splitlines()) == 2 + len(listing)
        assert f"<p>{title}" in listing._repr_html_()
        assert "2023-11-14T22:13:20" in repr(listing)
    (segment,) = topic.segments().to_pylist()
    assert segment["max_timestamp"] == datetime.fromtimestamp((NOW + 2) / 1000, timezone.utc)
    assert (segment["append_time_ms"], segment["created_ms"]) == (None, MOMENT)
    assert repr(topic.groups()).startswith("groups and partitions: 0")


def test_a_listing_is_an_arrow_stream(topic: distlog.Topic) -> None:
    listing = topic.segments()
    assert pa.table(listing) == listing.to_table()
    assert listing == topic.segments() != topic.history()
    assert (len(listing), listing.num_rows, listing["record_count"].to_pylist()) == (1, 1, [3])
    assert listing.column_names == listing.schema.names
    pytest.importorskip("pandas")
    assert list(listing.to_pandas().columns) == listing.column_names


def test_a_topic_shows_its_partitions(topic: distlog.Topic) -> None:
    shown = topic._repr_html_()
    assert "<b>clicks</b> version 1" in shown
    assert "3 records" in shown
    assert "<td>1</td><td>0</td><td>3</td><td>1</td><td>3</td>" in shown
    many = topic_on(Storage(f"memory://{uuid.uuid4().hex}/many"), 200)
    assert many._repr_html_().count("<tr>") == 22


def test_a_scan_shows_its_plan_and_reads_nothing(topic: distlog.Topic) -> None:
    scan = topic.scan(start={0: 0, 1: 1})
    old_bytes_read = topic.storage.counters.bytes_read
    assert repr(scan).startswith("Scan(segments=1, bytes=")
    assert "<td>1</td><td>1</td><td>3</td><td>1</td>" in scan._repr_html_()
    assert topic.storage.counters.bytes_read == old_bytes_read


def test_settings_show_changed_ones_and_in_a_notebook_all() -> None:
    config = TopicConfig.parse({"retention.ms": DAY_MS})
    assert repr(config) == f"TopicConfig(retention.ms={DAY_MS})"
    shown = config._repr_html_()
    assert f"<td>retention.ms</td><td>{DAY_MS}</td><td>yes</td><td>age kept; -1 keeps all</td>" in shown
    assert shown.count("<tr>") == 1 + len(config.all())
    assert pickle.loads(pickle.dumps(config)) == config


def reports(folder: Path) -> Iterator[Any]:
    topic = topic_on(Storage(str(folder / "t")), 1, {"file.delete.delay.ms": 0}, Clock())
    yield topic.append(values(range(5)))
    yield topic.append(values(range(5)), app_id="a", batch_id=1)
    yield topic.append(values(range(5)), app_id="a", batch_id=1)
    yield topic.verify()
    yield topic.rebuild_indexes()
    yield topic.compact()
    yield topic.delete_records({0: 2})
    yield topic.retention()
    yield topic.restore(1, dry_run=True)
    topic.alter_config({"cleanup.policy": "compact"})
    yield topic.compact(dry_run=True)
    yield topic.vacuum()
    yield topic.export(folder / "log-dir")
    yield distlog.adopt(folder / "log-dir", str(folder / "again"))


def test_reports_are_one_line_and_a_table_in_a_notebook(tmp_path: Path) -> None:
    shown = list(reports(tmp_path))
    assert len({type(report) for report in shown}) == 11
    for report in shown:
        name = type(report).__name__
        assert repr(report).startswith(f"<{name}: ")
        assert "\n" not in repr(report)
        assert len(repr(report)) < 400
        assert report._repr_html_().startswith("<p>")
        assert (report.to_table().num_rows > 0) == ("<table" in report._repr_html_())
    assert repr(shown[1]) == "<AppendResult: appended 5 records, version 2; offsets 0: 5 to 10>"
    assert "appended before" in repr(shown[2])


def test_completion_offers_what_users_need(topic: distlog.Topic) -> None:
    public = {name for name in dir(topic) if not name.startswith("_")}
    assert public == {
        *(
            "abort_transaction",
            "alter_config",
            "append",
            "assign_new_id",
            "compact",
            "config",
            "consume",
            "create_partitions",
            "dataset",
            "delete_group",
            "delete_records",
            "drop",
        ),
        "end_offsets",
        *(
            "export",
            "get",
            "groups",
            "history",
            "name",
            "offsets_for_times",
            "open_transactions",
            "partitions",
            "plot",
        ),
        *(
            "producer",
            "producers",
            "read",
            "rebuild_indexes",
            "records",
            "refresh",
            "repair",
            "reset_group",
            "restore",
        ),
        *("retention", "scan", "seal", "segments"),
        *("start_offsets", "transaction", "url", "vacuum", "verify", "version", "writer"),
    }
    assert {name for name in dir(topic.scan()) if not name.startswith("_")} == {
        *("avro", "columns", "count", "head", "plot", "protobuf", "sample", "schema", "tail"),
        *("to_duckdb", "to_pandas", "to_polars", "to_table"),
    }
    assert sorted(name for name in dir(distlog) if not name.startswith("_")) == sorted(
        set(distlog.__all__) - {"__version__"}
    )


@pytest.mark.s3
def test_no_secret_is_shown(s3_url: Any) -> None:
    topic = distlog.create(f"{s3_url.url}/clicks", storage_options=s3_url.options)
    result = topic.append(values(range(3)))
    scan = topic.scan()
    for shown in (
        topic,
        scan,
        topic.history(),
        topic.segments(),
        topic.groups(),
        topic.config,
        result,
        topic.vacuum(),
    ):
        for secret in (s3_url.options["secret"], s3_url.options["key"]):
            assert secret not in repr(shown) + shown._repr_html_()

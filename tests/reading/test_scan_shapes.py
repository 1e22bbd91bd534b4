"""A scan in the shapes of other libraries, and appends from other libraries."""

from __future__ import annotations

import sys
import uuid
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from forked_programs import run

import distlog


@pytest.fixture
def topic() -> distlog.Topic:
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/clicks", 2)
    topic.append([{"key": f"k{n}", "value": f"v{n}", "partition": n % 2} for n in range(10)])
    return topic


class Stream:
    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


def test_any_arrow_stream_can_be_appended(topic: distlog.Topic) -> None:
    other = distlog.create(f"memory://{uuid.uuid4().hex}/other", 2)
    assert other.append(Stream(pa.table({"value": ["a", "b"]}))).record_count == 2
    assert other.append(topic.scan()).record_count == 10
    for kind in (pa.string_view(), pa.binary_view()):
        other.append(Stream(pa.table({"value": pa.array(["v"], pa.string()).cast(kind)})), partition=0)
    assert len(other.scan()) == 14
    with pytest.raises(distlog.InvalidRecordError, match=r"no columns.*type=ChunkedArray"):
        other.append(pa.chunked_array([[1]]))


def test_a_scan_is_an_arrow_stream_table(topic: distlog.Topic) -> None:
    assert pa.table(topic.scan(columns="value")).num_rows == 10


def test_the_first_records_and_their_number_need_no_table(topic: distlog.Topic) -> None:
    scan = topic.scan(columns=["partition", "value"])
    assert scan.head(3)["value"].to_pylist() == [b"v0", b"v2", b"v4"]
    assert (scan.head(100).num_rows, scan.head(0).num_rows, len(scan)) == (10, 0, 10)
    assert topic.scan(start=5), "an empty scan is not false"


def test_keys_and_values_can_be_texts(topic: distlog.Topic) -> None:
    pytest.importorskip("pandas")
    frame = topic.scan(partitions=0).to_pandas(text=True)
    assert frame["value"].tolist() == ["v0", "v2", "v4", "v6", "v8"]
    topic.append([{"value": b"\xff"}])
    with pytest.raises(distlog.InvalidRecordError, match="column value is not text"):
        topic.scan().to_pandas(text=True)


def test_polars_reads_and_is_appended(topic: distlog.Topic) -> None:
    polars = pytest.importorskip("polars")
    frame = topic.scan().to_polars()
    assert frame.shape == (10, 7)
    assert polars.DataFrame(topic.scan(columns="value")).height == 10
    topic.append(polars.DataFrame({"key": ["a"], "value": ["text"]}))
    topic.append(frame)
    assert len(topic.scan()) == 21


def test_duckdb_reads_and_is_appended(topic: distlog.Topic) -> None:
    duckdb = pytest.importorskip("duckdb")
    scan = topic.scan()  # noqa: F841 - DuckDB finds it by its name
    assert duckdb.sql("SELECT count(*) FROM scan WHERE partition = 1").fetchall() == [(5,)]
    relation = topic.scan().to_duckdb().filter("partition = 0").project("value")
    assert len(relation.fetchall()) == len(relation.fetchall()) == 5
    assert topic.append(relation, partition=1).record_count == 5


def test_a_library_that_is_missing_is_named_with_what_to_install(
    topic: distlog.Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("duckdb", "pandas", "polars"):
        monkeypatch.setitem(sys.modules, name, None)
    scan = topic.scan()
    for call, hint in (
        (scan.to_pandas, r"to_pandas\(\) needs pandas: pip install pandas"),
        (topic.history().to_pandas, "pip install pandas"),
        (scan.to_polars, "pip install polars"),
        (scan.to_duckdb, r"pip install 'pydistlog\[duckdb\]'"),
        (partial(distlog.sql, "SELECT 1", "."), r"sql\(\) needs duckdb"),
    ):
        with pytest.raises(ModuleNotFoundError, match=hint):
            call()


WITHOUT_EXTRAS = """
import distlog, importlib, sys
for name in [name for name in sys.modules if name.startswith(("distlog.gateway", "distlog.spark"))]:
    del sys.modules[name]
sys.modules |= dict.fromkeys(["kio", "pyspark"])
for module in ("distlog.spark", "distlog.gateway.gateway_server"):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(error)
"""


def test_a_missing_extra_is_named() -> None:
    spark = "distlog.spark needs pyspark: pip install 'pydistlog[spark]'\n"
    assert run(WITHOUT_EXTRAS, check=True).stdout == (
        f"{spark}the gateway needs kio: pip install 'pydistlog[gateway]'\n"
    )

"""Writes examples/notebook.ipynb: `python tools/make_notebook.py`. Its cells are below.

The notebook has no results: a run shows the results of the day. A test runs it, and says that it is what this
makes.
"""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

NOTEBOOK = Path(__file__).parents[1] / "examples" / "notebook.ipynb"

#: Each cell begins with a line that says what it is.
CELLS = """
%%text
# distlog in a notebook

A topic is opened, looked at, drawn, and joined with DuckDB and Spark; at the end it goes back in time. It is made in
a temporary folder here; an address such as `s3://bucket/logs/clicks` works the same way.
You need distlog with the extras `plot` and `duckdb`, pandas, and for one cell the extra `spark` and Java.
%%code
import json
import tempfile
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa

import distlog

folder = tempfile.mkdtemp()
topic = distlog.create(f"{folder}/clicks", partitions=4, config={"retention.ms": 7 * 86_400_000})
topic
%%text
Nine days of clicks, each a JSON value, in 36 appends. The first two days are older than `retention.ms`, and a warning
would say so.
%%code
import warnings

warnings.simplefilter("ignore", distlog.RetentionWarning)
random = np.random.default_rng(7)
start = datetime.now(timezone.utc) - timedelta(days=9)
for quarter in range(36):
    count = int(500 + 400 * np.sin(quarter / 4 * 2 * np.pi))
    begin = start + timedelta(hours=6 * quarter)
    users = random.zipf(1.4, count) % 300
    values = [
        json.dumps({"user": f"u{user}", "page": f"/p{user % 7}", "ms": int(ms), "geo": {"city": f"c{user % 5}"}})
        for user, ms in zip(users, random.exponential(80, count), strict=True)
    ]
    times = [begin + timedelta(seconds=float(second)) for second in np.sort(random.uniform(0, 6 * 3600, count))]
    keys = [f"u{user}" for user in users]
    result = topic.append(pa.table({"key": keys, "value": values, "timestamp": times}))
result
%%text
## Look

A topic, its commits, its segments and its settings show themselves as tables. This reads no record.
%%code
topic
%%code
topic.history(limit=5)
%%code
topic.segments()
%%code
topic.config
%%text
A picture is drawn from the same metadata: how many records came when, how even the partitions are, and what the next
retention would delete.
%%code
topic.plot()
%%text
## Read

A scan is a plan; it reads when its result is asked for, and only what it needs.
%%code
scan = topic.scan(columns=["partition", "offset", "timestamp", "key", "value"])
len(scan), scan
%%code
scan.head(3).to_pandas()
%%code
scan.sample(3, seed=1).to_pandas()
%%text
Fields of JSON values become columns, with their types.
%%code
clicks = distlog.sql("SELECT value.ms, value.geo.city FROM clicks", folder, values={"clicks": "json"})
clicks.df().groupby("city")["ms"].describe().round(1)
%%text
One day, counted exactly by the times of its records:
%%code
yesterday = datetime.now(timezone.utc) - timedelta(days=1)
topic.scan(start_time=yesterday).plot(exact=True)
%%text
## DuckDB

DuckDB reads a scan by its name, as an Arrow stream.
%%code
import duckdb

duckdb.sql("SELECT partition, count(*) AS records, max(timestamp) AS newest FROM scan GROUP BY ALL ORDER BY ALL").df()
%%text
## Spark

The same scan as a DataFrame, joined with a table of Spark's. The cell does nothing where Spark is not installed.
%%code
try:
    from distlog.spark import frame, session
except ModuleNotFoundError as error:
    print(f"left out: {error}")
else:
    spark = session("notebook", **{"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    cities = spark.createDataFrame([("c0", "Bern"), ("c1", "Lyon"), ("c2", "Graz")], "city string, name string")
    records = frame(spark, topic.scan(start_time=yesterday))
    city = records.selectExpr("get_json_object(cast(value AS string), '$.geo.city') AS city")
    display(city.join(cities, "city").groupBy("name").count().orderBy("name").toPandas())
%%text
## Maintenance, and time travel

Retention deletes the oldest segments. A version from before still has them, until vacuum deletes the files.
%%code
before = topic.version
topic.retention()
%%code
earlier = distlog.open(topic.url, version=before)
{"now": len(topic.scan()), f"at version {before}": len(earlier.scan())}
%%code
topic.alter_config({"retention.ms": 30 * 86_400_000})
topic.restore(before)
%%code
len(topic.refresh().scan())
"""


def cells(text: str) -> list[nbformat.NotebookNode]:
    """The cells of `text`, with ids that stay the same."""
    _, *parts = re.split(r"^%%(text|code)\n", text, flags=re.MULTILINE)
    notebook_cells = [
        (new_code_cell if kind == "code" else new_markdown_cell)(source.rstrip("\n"))
        for kind, source in zip(parts[::2], parts[1::2], strict=True)
    ]
    for number, cell in enumerate(notebook_cells):
        cell["id"] = f"cell-{number:02}"
    return notebook_cells


def notebook() -> str:
    """The notebook as a file has it."""
    page = new_notebook(cells=cells(CELLS))
    page.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    page.metadata["language_info"] = {"name": "python"}
    return nbformat.writes(page) + "\n"


if __name__ == "__main__":
    NOTEBOOK.write_text(notebook(), encoding="utf-8")

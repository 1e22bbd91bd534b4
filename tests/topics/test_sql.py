"""SQL over the topics of a folder, as a library and as a command."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from addresses import Address
from command_line import CommandLine

import distlog


@pytest.fixture
def root(tmp_path: Path) -> str:
    users = distlog.create(f"{tmp_path}/users", partitions=2)
    users.append(
        [{"key": name, "value": json.dumps({"city": city})} for name, city in (("ann", "Bonn"), ("bob", "Rom"))]
    )
    pages = distlog.create(f"{tmp_path}/Page-views")
    pages.append(
        [{"key": "ann", "value": "/start"}, {"key": "bob", "value": "/help"}, {"key": "ann", "value": "/end"}]
    )
    distlog.create(f"{tmp_path}/raw").append([{"key": b"\xff", "value": b"\xfe"}])
    return str(tmp_path)


def test_topics_are_tables_that_can_be_joined(root: str) -> None:
    query = """
        SELECT u.value->>'$.city' AS city, count(*) AS views
        FROM "page-views" p JOIN users u ON u.key = p.key GROUP BY city ORDER BY city
    """
    assert distlog.sql(query, root).fetchall() == [("Bonn", 2), ("Rom", 1)]
    assert distlog.sql("SELECT count(*) FROM USERS--the users", root).fetchall() == [(2,)]
    assert distlog.sql("SHOW TABLES", root).fetchall() == [("Page-views",), ("raw",), ("users",)]
    assert distlog.sql("SELECT count(*) FROM users", f"{root}/users").fetchall() == [(2,)]
    kinds = {name: kind for name, kind, *_ in distlog.sql("DESCRIBE raw", root).fetchall()}
    assert (kinds["key"], kinds["value"], kinds["timestamp"]) == ("BLOB", "BLOB", "TIMESTAMP WITH TIME ZONE")


def test_a_query_reads_topics_on_each_kind_of_storage(storage_url: Address) -> None:
    url, options = storage_url
    topic = distlog.create(f"{url}/clicks", partitions=2, storage_options=options)
    for start in range(0, 40, 10):
        topic.append([{"key": f"k{row % 4}", "value": f"v{row}"} for row in range(start, start + 10)], partition=0)
    query = 'SELECT key, count(*) FROM clicks WHERE "offset" >= 8 AND "offset" < 20 GROUP BY key ORDER BY key'
    counts = distlog.sql(query, url, storage_options=options).fetchall()
    assert counts == [(f"k{number}", 3) for number in range(4)]


def test_a_query_reads_the_versions_of_its_call_or_of_a_time(root: str) -> None:
    topic = distlog.open(f"{root}/raw")
    relation = distlog.sql("SELECT count(*) FROM raw", root)
    created_ms = topic.history()["timestamp"].to_pylist()
    topic.append([{"value": "later"}])
    assert relation.fetchall() == [(1,)]
    assert distlog.sql("SELECT count(*) FROM raw", root, timestamp=min(created_ms)).fetchall() == [(0,)]
    assert distlog.sql("SELECT count(*) FROM raw", root).fetchall() == [(2,)]


def test_a_query_reads_the_versions_of_its_topics(root: str, cli: CommandLine) -> None:
    distlog.open(f"{root}/raw").append([{"value": "later"}])
    counts = "SELECT (SELECT count(*) FROM raw), (SELECT count(*) FROM users)"
    assert distlog.sql(counts, root).fetchall() == [(2, 2)]
    assert distlog.sql(counts, root, version={"raw": 1, "users": 0}).fetchall() == [(1, 0)]
    assert cli.bare("sql", root, counts, "--version", "raw=1").rows[1] == ["1", "2"]
    assert cli.bare("sql", root, "SELECT count(*) FROM raw", "--version", "1").rows[1] == ["1"]
    assert cli.bare("sql", root, "SELECT count(*) FROM raw", "--version", "0").rows[1] == ["0"]
    for wrong in (["1"], ["1", "raw=1"], ["raw=x"], ["gone=1"]):
        arguments = [word for number in wrong for word in ("--version", number)]
        assert cli.bare("sql", root, counts, *arguments).status != 0


def test_keys_and_values_are_blobs_if_asked_for(root: str, cli: CommandLine) -> None:
    assert distlog.sql("SELECT DISTINCT key FROM users ORDER BY key", root, blobs=True).fetchall() == [
        (b"ann",),
        (b"bob",),
    ]
    assert cli.bare("sql", root, "SELECT typeof(value) FROM users LIMIT 1", "--blobs").rows[1] == ["BLOB"]


def test_a_connection_has_the_topics_as_views(root: str) -> None:
    connection = distlog.sql_connection(root, values={"users": "json"}, version={"raw": 0})
    assert connection.sql("SHOW TABLES").fetchall() == [("Page-views",), ("raw",), ("users",)]
    connection.sql("CREATE TABLE cities AS SELECT value.city AS city FROM users")
    assert connection.sql("SELECT city FROM cities ORDER BY city").fetchall() == [("Bonn",), ("Rom",)]
    assert connection.sql("SELECT count(*) FROM raw").fetchall() == [(0,)]


def test_a_folder_without_topics_and_wrong_names_are_errors(root: str, tmp_path: Path, cli: CommandLine) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(distlog.TopicNotFoundError, match="no topic"):
        distlog.sql("SELECT 1", str(tmp_path / "empty"))
    for query, problem in (
        ("SELECT * FROM userz", "userz"),
        ("SELECT city FROM users", "city"),
        ("SELEC 1", "SELEC"),
    ):
        result = cli.bare("sql", root, query)
        assert result.status == 2
        assert problem in result.err
    topic = distlog.open(f"{root}/users")
    for _ in range(3):
        topic.append([{"key": f"k{number}", "value": "{}"} for number in range(200)], partition=0)
    topic.append([{"key": b"\xff", "value": "{}"}], partition=0)
    topic.append([{"key": f"k{number}", "value": "{}"} for number in range(200)], partition=1)
    result = cli.bare("sql", root, "SELECT max(key) FROM users")
    assert result.status == 1
    assert (
        "users is not UTF-8: read keys and values as bytes, with blobs=True or topic.dataset() (partition=0 offset="
        in result.err
    )


def test_the_command_prints_and_writes_each_format(root: str, tmp_path: Path, cli: CommandLine) -> None:
    query = 'SELECT "offset", key, headers FROM "Page-views" WHERE "offset" < 2'
    assert cli.bare("sql", root, query).out == "offset\tkey\theaders\n0\tann\t[]\n1\tbob\t[]\n"
    lines = cli.bare("sql", root, query, "--json").out.splitlines()
    assert [json.loads(line) for line in lines] == [
        {"offset": 0, "key": "ann", "headers": []},
        {"offset": 1, "key": "bob", "headers": []},
    ]
    assert cli.bare("sql", root, "SELECT key FROM users WHERE false", "--json").out == ""
    rows = list(csv.reader(cli.bare("sql", root, query, "--format", "csv").out.splitlines()))
    assert rows == [["offset", "key", "headers"], ["0", "ann", "[]"], ["1", "bob", "[]"]]
    (tmp_path / "query.sql").write_text(query)
    target = tmp_path / "it's.parquet"
    cli.bare("sql", root, "--file", str(tmp_path / "query.sql"), "--format", "parquet", "--output", str(target))
    assert pq.read_table(target)["key"].to_pylist() == ["ann", "bob"]
    for wrong in ([], ["x", "--file", "y"], [query, "--format", "parquet"], [query, "--output", "x"]):
        assert cli.bare("sql", root, *wrong).status == 2

"""Topics in SQL: views of all topics of a root, and tables of Spark's catalog, which are refused."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from addresses import Address
from pyspark.sql import SparkSession

import distlog
from distlog.core.errors import InvalidTopicError, TopicNotFoundError
from distlog.spark import register_tables
from distlog.spark.data_source import DistlogDataSource

pytestmark = pytest.mark.spark


def fill(root: str, name: str, count: int, **storage: Any) -> distlog.Topic:
    topic = distlog.create(f"{root}/{name}", **storage)
    topic.append([{"value": b"%d" % number} for number in range(count)])
    return topic


def count(spark: SparkSession, name: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {name}").first()[0])


def test_each_topic_of_a_root_is_a_view_by_its_name(spark: SparkSession, tmp_path: Path) -> None:
    names = ["2024", "clicks", "order", "web.clicks-eu"]
    for number, name in enumerate(names, 1):
        fill(str(tmp_path), name, number)
    fill(str(tmp_path), "gone", 1).drop()
    (tmp_path / "no-topic").mkdir()
    views = register_tables(spark, str(tmp_path))
    assert views == [f"`{name}`" for name in names]
    assert [count(spark, name) for name in views] == [1, 2, 3, 4]
    joined = "SELECT cast(a.value AS string) FROM clicks a JOIN `web.clicks-eu` b USING (value) ORDER BY a.offset"
    assert [row[0] for row in spark.sql(joined).collect()] == ["0", "1"]


def test_a_view_is_the_snapshot_of_its_creation(spark: SparkSession, tmp_path: Path) -> None:
    topic = fill(str(tmp_path), "clicks", 3)
    register_tables(spark, str(tmp_path))
    topic.append([{"value": b"more"}])
    assert count(spark, "clicks") == 3
    register_tables(spark, str(tmp_path))
    assert count(spark, "clicks") == 4


@pytest.mark.s3
def test_views_have_the_storage_options_of_the_call(spark: SparkSession, s3_url: Address) -> None:
    fill(s3_url.url, "visits", 5, storage_options=s3_url.options)
    register_tables(spark, s3_url.url, storage_options=s3_url.options)
    assert count(spark, "visits") == 5


def test_names_that_differ_in_case_need_case_sensitivity(spark: SparkSession, tmp_path: Path) -> None:
    fill(str(tmp_path), "Likes", 1)
    fill(str(tmp_path), "likes", 2)
    with pytest.raises(InvalidTopicError, match=r"caseSensitive.*first=Likes second=likes"):
        register_tables(spark, str(tmp_path))
    assert not spark.catalog.tableExists("likes")
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        register_tables(spark, str(tmp_path))
        assert (count(spark, "Likes"), count(spark, "likes")) == (1, 2)
    finally:
        spark.conf.unset("spark.sql.caseSensitive")


def test_a_folder_without_topics_fails(spark: SparkSession, tmp_path: Path) -> None:
    topic = fill(str(tmp_path), "clicks", 1)
    for root in (topic.url, f"{tmp_path}/nothing"):
        with pytest.raises(TopicNotFoundError, match="the folder has no topics"):
            register_tables(spark, root)


@pytest.mark.parametrize("location", ["OPTIONS (path '{url}')", "LOCATION '{url}'", "OPTIONS (topic 'clicks')"])
def test_a_table_of_the_catalog_is_refused_when_it_is_made(
    spark: SparkSession, tmp_path: Path, location: str
) -> None:
    topic = fill(str(tmp_path), "clicks", 1)
    with pytest.raises(Exception, match=r"register_tables.*CREATE TEMPORARY VIEW"):
        spark.sql(f"CREATE TABLE refused USING distlog {location.format(url=topic.url)}")
    with pytest.raises(Exception, match="no topic is named"):
        spark.sql(f"CREATE TABLE refused USING distlog {location.format(url=topic.url)} AS SELECT 'v' AS value")
    assert not spark.catalog.tableExists("refused")


def test_a_table_created_by_spark_fails_with_advice_to_use_views(spark: SparkSession, tmp_path: Path) -> None:
    topic = fill(str(tmp_path), "clicks", 1)
    rows = spark.sql("SELECT 'v' AS value")
    spark.sql(f"CREATE TABLE declared (value int) USING distlog OPTIONS (path '{topic.url}')")
    rows.write.format("distlog").mode("append").option("path", topic.url).saveAsTable("saved")
    try:
        for name in ("declared", "saved"):
            with pytest.raises(Exception, match="make a temporary view"):
                spark.sql(f"SELECT * FROM {name}").collect()
        with pytest.raises(Exception, match="make a temporary view"):
            spark.sql("INSERT INTO saved VALUES ('w')")
    finally:
        for name in ("declared", "saved"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
    assert topic.refresh().scan().count() == 2, "saveAsTable appends to the topic, and DROP TABLE leaves it alone"


def test_a_read_with_an_option_name_of_the_catalog_works(tmp_path: Path) -> None:
    topic = fill(str(tmp_path), "clicks", 1)
    for name in ("owner", "provider"):
        assert DistlogDataSource({"path": topic.url, name: "root"}).schema().names


def test_a_copied_and_a_moved_folder_are_views_by_their_own_names(spark: SparkSession, tmp_path: Path) -> None:
    fill(str(tmp_path), "clicks", 1)
    shutil.copytree(tmp_path / "clicks", tmp_path / "backup")
    distlog.open(str(tmp_path / "backup")).append([{"value": b"more"}])
    fill(str(tmp_path), "orders", 3)
    os.rename(tmp_path / "orders", tmp_path / "sales")
    with pytest.warns(distlog.TopicIdWarning, match="backup has the topic id of clicks"):
        assert register_tables(spark, str(tmp_path)) == ["`backup`", "`clicks`", "`sales`"]
    assert [count(spark, name) for name in ("backup", "clicks", "sales")] == [2, 1, 3]
    assert {row.topic for row in spark.sql("SELECT topic FROM sales").collect()} == {"sales"}
    path = str(tmp_path / "sales")
    read = spark.read.format("distlog").option("subscribe", "sales").load(path)
    assert [row.topic for row in read.collect()] == ["sales"] * 3

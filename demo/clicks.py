"""Generates a realistic click stream: few users click much, pages follow a power law, times advance unevenly."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

START_MS = 1_767_225_600_000
USERS = 50_000
PAGES = 2_000


def clicks(spark: SparkSession, rows: int) -> DataFrame:
    """`rows` clicks over about two days: key (the user), value (JSON), timestamp. Every run gives the same."""
    user = F.concat(F.lit("user-"), _ranked(USERS, 1))
    page = F.concat(F.lit("/page/"), _ranked(PAGES, 2))
    # even steps over two days (172.8 s per 1,000 clicks of a million), and a little disorder, as in real streams
    time = F.timestamp_millis(
        F.lit(START_MS) + F.col("id") * F.lit(172_800_000 // max(rows, 1)) + (_noise(3) * 5_000).cast("long")
    )
    fields = F.struct(
        user.alias("user"),
        page.alias("page"),
        F.element_at(F.array(*map(F.lit, ("web", "ios", "android"))), _upto(3, 4)).alias("client"),
        (_noise(5) * 60_000).cast("int").alias("dwell_ms"),
    )
    return (
        spark.range(rows)
        .select(user.alias("key"), F.to_json(fields).alias("value"), time.alias("timestamp"))
        .select(F.col("key").cast("binary"), F.col("value").cast("binary"), "timestamp")
    )


def _noise(seed: int) -> Column:
    """A number in [0, 1) that depends only on the row and the seed, unlike rand(): a retried task gives the same."""
    return F.pmod(F.xxhash64(F.col("id"), F.lit(seed)), F.lit(1 << 30)) / F.lit(1 << 30)


def _ranked(count: int, seed: int) -> Column:
    return F.floor(F.pow(_noise(seed), 3) * count).cast("string")


def _upto(count: int, seed: int) -> Column:
    return (F.floor(_noise(seed) * count) + 1).cast("int")

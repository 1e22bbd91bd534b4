"""Makes a Spark session that suits distlog, and registers the data source in an existing session."""

from __future__ import annotations

import json
import os
import sys
import uuid
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import pyarrow as pa
from pyspark import SparkConf, SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from distlog.spark.data_source import DistlogDataSource, with_storage_options
from distlog.spark.versions import check_pyspark

#: Settings that differ from Spark's defaults. spark-submit and the caller can override them.
DEFAULTS: Mapping[str, str] = {
    # rows pass between the JVM and Python twice as fast as over TCP
    "spark.python.unix.domain.socket.enabled": "true",
    # batches sent to a Python writer have this many bytes; the limit of rows is too high to make them smaller
    "spark.sql.execution.arrow.maxBytesPerBatch": "4194304",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000000",
    # running a second attempt next to the first is correct, but writes everything twice
    "spark.speculation": "false",
    # a time without a zone means UTC everywhere in distlog
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "ERROR",
}
#: The environment variable of Arrow's allocator. No function changes the default pool of Arrow's C++ code.
ARROW_POOL = "ARROW_DEFAULT_MEMORY_POOL"
#: Sessions in which the format is registered. Each registration starts a Python process.
_registered_sessions: WeakSet[SparkSession] = WeakSet()
#: The name of the format with storage options, by session and by these options as JSON.
_format_names: WeakKeyDictionary[SparkSession, dict[str, str]] = WeakKeyDictionary()


def session(app_name: str = "distlog", **conf: str) -> SparkSession:
    """Return the Spark session, with settings that suit distlog where you chose none, and the format `distlog`.

    Args:
        app_name: The name of the application.
        **conf: Settings that override spark-submit's, which override the defaults.

    Returns:
        The session.

    Examples:
        >>> spark = session("app", **{"spark.sql.shuffle.partitions": "2"})
    """
    # so that Spark plans Python data sources with this interpreter, not with `python3` on PATH
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**default_settings(), **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: SparkSession, storage_options: Mapping[str, Any] | None = None) -> None:
    """Register the format `distlog` in a session; needed for `format("distlog")` if distlog came by `--py-files`.

    Args:
        spark: The session.
        storage_options: Options for each read, write and stream of the format that does not set them itself. They
            reach tasks, but Spark's plans, logs, event logs and pages never show them, so they may be secrets.

    Raises:
        InvalidConfigError: PySpark 4.0 cannot register it with storage options.

    Examples:
        >>> register(spark)
        >>> spark.read.format("distlog").load(topic.url).count()
        3
    """
    name = DistlogDataSource.name()
    source = with_storage_options(storage_options, name) if storage_options else DistlogDataSource
    try:
        spark.dataSource.register(source)
    except AnalysisException as error:
        if "DATA_SOURCE_ALREADY_EXISTS" not in str(error):
            raise
        # PySpark 4.0 cannot replace a format that it found by itself
        feature, instead = "register with storage options", ": give them to append, read and stream"
        check_pyspark(not storage_options, feature, "4.1", instead)
    _registered_sessions.add(spark)


def format_with(spark: SparkSession, storage_options: Mapping[str, Any] | None) -> str:
    """Return the name of a format in the session with these storage options, which Spark does not show."""
    if spark not in _registered_sessions:
        register(spark)
    activate(spark)
    if not storage_options:
        return DistlogDataSource.name()
    names = _format_names.setdefault(spark, {})
    key = json.dumps(dict(storage_options), sort_keys=True, default=repr)
    if key not in names:
        name = f"{DistlogDataSource.name()}-{uuid.uuid4().hex}"
        spark.dataSource.register(with_storage_options(storage_options, name))
        names[key] = name
    return names[key]


def activate(spark: SparkSession) -> None:
    """Make `spark` the active session of this thread. Spark looks up formats there, and new threads have none."""
    if SparkSession.getActiveSession() is not spark:
        # `createDataFrame` makes its session the active one
        spark.createDataFrame([], "nothing int")


def cores(spark: SparkSession) -> int:
    """Return the number of concurrent tasks; this machine's processors if Spark does not report it."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # Spark Connect has no context, and each kind of session raises another error
        return os.cpu_count() or 1


def default_settings() -> dict[str, str]:
    """Return the settings of a new session that spark-submit and its configuration do not set."""
    settings = dict(DEFAULTS)
    if folder := os.environ.get("NUMBA_CACHE_DIR"):
        settings["spark.executorEnv.NUMBA_CACHE_DIR"] = folder
    # mimalloc takes huge pages for each thread's first small buffer, and keeps most of this memory
    if ARROW_POOL not in os.environ and "jemalloc" in pa.supported_memory_backends():
        settings[f"spark.executorEnv.{ARROW_POOL}"] = "jemalloc"
    if "SPARK_REMOTE" in os.environ or "SPARK_CONNECT_MODE_ENABLED" in os.environ:  # Spark Connect
        return {name: value for name, value in settings.items() if name.startswith("spark.sql.")}
    SparkContext._ensure_initialized()  # only the JVM knows the settings of spark-submit
    submitted_conf = SparkConf()
    defaults = {name: value for name, value in settings.items() if not submitted_conf.contains(name)}
    # PySpark enables the progress bar itself, so the user's choice is unknown: show the bar on a terminal, never in a
    # pipe. spark-submit replaces Python's streams, so ask the JVM too
    jvm = SparkContext._jvm
    is_shown = sys.stderr is not None and sys.stderr.isatty()
    is_shown = is_shown or (jvm is not None and jvm.java.lang.System.console() is not None)
    return {**defaults, "spark.ui.showConsoleProgress": str(is_shown).lower()}

"""SQL over the topics of a folder: DuckDB reads each topic that a query names as a view."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from distlog.core import extra, optional, paths
from distlog.core.errors import TopicNotFoundError
from distlog.core.opening import StorageOptions, find_topics
from distlog.core.opening import open as open_topic
from distlog.core.read.dataset import TEXT_COLUMNS, TopicDataset, is_text
from distlog.core.storage.parallel import in_parallel
from distlog.core.storage.storage import Storage
from distlog.core.times import Time

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

#: The first and the last records of a topic that show whether its keys and values are text.
_SAMPLE_RECORDS = 100


def sql(
    query: str, root: str, *, timestamp: Time | None = None, storage_options: StorageOptions | None = None
) -> DuckDBPyRelation:
    """Run a query of SQL over topics; DuckDB must be installed.

    Each topic is a view with the columns of a scan: partition, offset, timestamp, timestamp_type, key, value and
    headers. Keys and values are text if the first and last records of the topic have UTF-8, else blobs. `offset` is
    a word of SQL: write `"offset"`. Conditions on partition, offset and timestamp bound what is read.

    Args:
        query: A statement of DuckDB's SQL; `SHOW TABLES` lists the topics.
        root: Any fsspec URL or local path of a folder of topics, or of one topic.
        timestamp: The time whose records are read; default now.
        storage_options: Options of the storage.

    Returns:
        The relation, which reads the topics each time that its result is asked for, at the versions of the call.

    Raises:
        TopicNotFoundError: There is no topic in the folder.
        ModuleNotFoundError: DuckDB is not installed.

    Examples:
        >>> distlog.sql("SELECT key FROM clicks WHERE partition = 0 ORDER BY key", ".").fetchall()
        [('anna',), ('bert',)]
    """
    duckdb = optional("duckdb", "sql()", extra("duckdb"))
    connection = duckdb.connect(":memory:")
    connection.execute("SET TimeZone = 'UTC'")
    storage = Storage(root, storage_options)
    for name, dataset in _views(storage, _tables_in(connection, query), timestamp, storage_options).items():
        connection.register(name, dataset)
    relation: DuckDBPyRelation = connection.sql(query)
    return relation


def _tables_in(connection: Any, query: str) -> set[str]:
    """Return the tables that the query names; empty if it names none, or if only running it would show them."""
    try:
        return set(connection.get_table_names(query))
    except RuntimeError:
        return set()


def _views(
    root: Storage, tables: Iterable[str], timestamp: Time | None, options: StorageOptions | None
) -> dict[str, TopicDataset]:
    """Return the datasets of the topics that the query names, or else of all topics."""
    is_topic = paths.COMMITS_DIR in root.list_folders()
    storages = {storage.name: storage for storage in ([root] if is_topic else find_topics(root))}
    if not storages:
        raise TopicNotFoundError("there is no topic in the folder", url=root.url)
    # DuckDB does not distinguish upper and lower case
    lower = {name.lower(): name for name in storages}
    topics = {table: table if table in storages else lower.get(table.lower()) for table in tables}
    names = {table: name for table, name in topics.items() if name} or {name: name for name in storages}

    def dataset(name: str) -> TopicDataset:
        topic = open_topic(storages[name].url, timestamp=timestamp, storage_options=options)
        scan = topic.scan(columns=TEXT_COLUMNS)
        sample = pa.concat_tables([scan.head(_SAMPLE_RECORDS), scan.tail(_SAMPLE_RECORDS)])
        return topic.dataset(text=[name for name in TEXT_COLUMNS if is_text(sample[name])])

    return dict(zip(names, in_parallel(dataset, names.values()), strict=True))

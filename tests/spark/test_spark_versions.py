"""Features that an older PySpark lacks are named, and its streams are right; `make test-versions` tries real ones."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pyspark
import pytest
from streams import SCHEMA, Read, Stream, add_partition, append, delete_before, span
from streams import topic as topic

import distlog
from distlog import Topic
from distlog.core.errors import InvalidConfigError, OffsetOutOfRangeError, TopicNotFoundError
from distlog.spark.data_source import DistlogDataSource
from distlog.spark.stream_plan import StreamOptions, UnlimitedStreamReader
from distlog.spark.versions import map_in_arrow


class OldStream(Stream):
    """A query of Spark before 4.2, which requests the end of a batch before the start of the first one."""

    def restart(self, **options: Any) -> None:
        self.options |= {name: str(value) for name, value in options.items()}
        self.reader = UnlimitedStreamReader(StreamOptions.parse(self.options), SCHEMA, self.clock)

    def plan(self, *, everything: bool = False) -> bool:
        end = json.dumps(self.reader.latestOffset())  # type: ignore[call-arg]
        if self.log and end == self.log[-1]:
            return False
        if not self.log:
            self.reader.initialOffset()
        self.log.append(end)
        return True


def run(stream: Stream) -> Read:
    return stream.run() or {}


def test_a_stream_without_a_start_reads_each_record_once(topic: Topic) -> None:
    stream = OldStream(topic.url, startingOffsets="earliest")
    assert run(stream) == {0: span(0, 5), 1: span(0, 5)}
    assert stream.run() is None
    append(topic, 0, 2)
    assert run(stream) == {0: [5, 6]}
    append(topic, 1, 1)
    stream.restart()
    assert run(stream) == {1: [5]}
    assert stream.run() is None


def test_its_first_batch_is_replayed_from_the_same_start(topic: Topic) -> None:
    stream = OldStream(topic.url)
    assert stream.plan()
    append(topic, 0, 2)
    stream.restart()
    assert run(stream) == {}
    assert run(stream) == {0: [5, 6]}
    old_stream = OldStream(topic.url, startingOffsets='{"clicks": {"0": 3, "1": 5}}')
    assert old_stream.plan()
    append(topic, 0, 1)
    old_stream.restart(startingOffsets="latest")
    assert run(old_stream) == {0: [3, 4, 5, 6]}
    assert run(old_stream) == {0: [7]}


def test_added_partitions_are_read_from_their_first_record(topic: Topic) -> None:
    stream = OldStream(topic.url)
    run(stream)
    add_partition(topic)
    append(topic, 2, 2)
    assert run(stream) == {2: [0, 1]}
    add_partition(topic)
    append(topic, 3, 1)
    stream.restart()
    assert run(stream) == {3: [0]}
    add_partition(topic)
    append(topic, 4, 2)
    delete_before(topic, 4, 1)
    with pytest.raises(OffsetOutOfRangeError, match="partition=4 offset=0"):
        stream.run()


def test_a_newer_spark_continues_its_checkpoint(topic: Topic) -> None:
    old = OldStream(topic.url, startingOffsets="earliest")
    run(old)
    append(topic, 0, 1)
    assert old.plan()
    new = Stream(topic.url)
    new.log, new.committed = list(old.log), 1
    assert run(new) == {0: [5]}
    append(topic, 1, 1)
    assert run(new) == {1: [5]}


def test_its_start_and_its_topic_are_checked(topic: Topic) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="offset=9"):
        OldStream(topic.url, startingOffsets='{"clicks": {"0": 9, "1": 0}}').run()
    with pytest.raises(InvalidConfigError, match="for every partition"):
        OldStream(topic.url, startingOffsets='{"clicks": {"0": 9}}').run()
    stream = OldStream(topic.url)
    run(stream)
    topic.drop()
    with pytest.raises(TopicNotFoundError):
        stream.run()
    append(distlog.create(topic.url, 2), 0, 3)
    with pytest.raises(TopicNotFoundError, match="created again"):
        stream.run()
    stream.restart(failOnDataLoss="false")
    assert run(stream) == {0: [0, 1, 2]}


@pytest.mark.parametrize(
    ("part", "use", "message"),
    [
        ("HAS_ADMISSION", lambda source: source.streamReader(SCHEMA), "a limit of micro-batches needs PySpark 4.2"),
        ("HAS_STREAM_SINK", lambda source: source.streamWriter(SCHEMA, False), "foreachBatch"),
        ("HAS_FILTERS", lambda source: source.reader(SCHEMA), "the option pushFilters needs PySpark 4.1"),
    ],
)
def test_missing_features_name_the_required_versions(
    topic: Topic, monkeypatch: pytest.MonkeyPatch, part: str, use: Any, message: str
) -> None:
    monkeypatch.setattr(f"distlog.spark.data_source.{part}", False)
    options = {"path": topic.url, "pushFilters": "true"} if part == "HAS_FILTERS" else {"path": topic.url}
    if part == "HAS_ADMISSION":
        assert isinstance(DistlogDataSource(options).streamReader(SCHEMA), UnlimitedStreamReader)
        options["maxBytesPerTrigger"] = "9"
    with pytest.raises(InvalidConfigError, match=message) as raised:
        use(DistlogDataSource(options))
    assert f"and this is {pyspark.__version__}" in str(raised.value)


#: A simulated PySpark 3.5, without modules for data sources.
AS_3_5 = """
import sys, pyspark
pyspark.__version__ = "3.5.7"
sys.modules |= dict.fromkeys(["pyspark.sql.datasource", "pyspark.sql.streaming.datasource"])
from {module} import {name}
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("module", "name"),
    [("distlog.spark", "append"), ("distlog.spark.frames", "read"), ("distlog.jobs.read", "main")],
)
def test_a_pyspark_without_sources_in_python_is_refused_by_its_version(module: str, name: str) -> None:
    program = AS_3_5.format(module=module, name=name)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stderr.splitlines()[-1].startswith(
        "ImportError: distlog.spark needs PySpark 4.0 or newer, and this is 3.5.7"
    )


def test_a_missing_pandas_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs pandas: pip install 'pydistlog\[spark\]'"):
        map_in_arrow(None, None, "value binary")  # type: ignore[arg-type]

"""The options of a write: names of Delta's writer, names of Spark's Kafka sink, and our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlog.core.commits.format.fields import LONGEST_NAME
from distlog.core.errors import InvalidConfigError
from distlog.core.storage.storage import Storage
from distlog.core.topics.appending.append_commit import BatchId, check_batch
from distlog.spark.options import Options, storage_of
from distlog.spark.sink.topic_facts import TopicFacts

WRITE_NAMES = [
    "compression",
    "kafka.compression.type",
    "mergeSegments",
    "path",
    "topic",
    "topicFacts",
    "txnAppId",
    "txnVersion",
    "writeId",
]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a write: txnAppId and txnVersion make it idempotent, as Delta's do.

    compression is the codec, if the topic leaves it open; Spark's Kafka sink calls it kafka.compression.type.
    mergeSegments says whether small segments are merged after the commit: by default after a micro-batch. topic, as
    of Spark's Kafka sink, can only name the topic of the path. writeId is stored in the commit. topicFacts is what
    the driver knows about the topic, so that no task loads it again.
    """

    storage: Storage
    app_id: str | None = None
    batch_id: BatchId | None = None
    write_id: str | None = None
    compression: str | None = None
    topic: TopicFacts | None = None
    merge_segments: str = "auto"
    named: str | None = None

    def merges(self, *, is_micro_batch: bool) -> bool:
        """Whether the write merges small segments after its commit."""
        return self.merge_segments == "true" or (self.merge_segments == "auto" and is_micro_batch)

    @classmethod
    def parse(cls, given: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
        """Parse the options. Raises InvalidConfigError, and InvalidRecordError for bad ids.

        The versions of a stream are the numbers of its micro-batches, so it takes txnAppId alone.
        """
        options = Options(given, WRITE_NAMES)
        if options.text("tiered") is not None:
            raise InvalidConfigError("option tiered is for reads: only Kafka's brokers add to its tiered storage")
        app_id, version = options.text("txnAppId"), options.text("txnVersion")
        if is_stream and version is not None:
            raise InvalidConfigError("leave txnVersion out: the versions of a stream are its batches' numbers")
        if not is_stream and (app_id is None) != (version is None):
            raise InvalidConfigError("give txnAppId and txnVersion together: one alone prevents no duplicates")
        batch_id = None if version is None else parse_batch_id(version)
        check_batch(app_id, 0 if is_stream and app_id is not None else batch_id)
        write_id = options.text("writeId")
        if write_id and len(write_id) > LONGEST_NAME:
            raise InvalidConfigError(
                f"option writeId must be at most {LONGEST_NAME} characters", length=len(write_id)
            )
        codec = options.text("compression") or options.text("kafka.compression.type")
        known = options.text("topicFacts")
        topic = None if known is None else TopicFacts.parse(known)
        merge = options.choice("mergeSegments", ("auto", "true", "false"))
        named = options.text("topic")
        return cls(storage_of(given), app_id, batch_id, write_id, codec, topic, merge, named)

    def check_topic(self, name: str) -> None:
        """Raise InvalidConfigError if the option topic names another topic than the path."""
        if self.named not in (None, name):
            raise InvalidConfigError(
                "option topic must name the topic of the path: write to the path of the other topic",
                topic=self.named,
                path=name,
            )


def parse_batch_id(text: str) -> BatchId:
    """The batch id as a number if the text is one: Spark's options are strings, but its batches have numbers."""
    is_number = len(text) <= LONGEST_NAME and text.isascii() and text.isdecimal()
    return int(text) if is_number else text

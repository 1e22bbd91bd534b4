"""Transactional producers that speak Kafka's protocol word for word, and what a gateway's readers see."""

from __future__ import annotations

import datetime
from importlib import import_module
from typing import Any

from gateways import PRODUCE, Wire, produce_fields
from kio.schema.errors import ErrorCode
from raw_batches import batch, record

from distlog.core.format.record_batch import TRANSACTIONAL

ADD_PARTITIONS, ADD_OFFSETS, END_TXN, TXN_OFFSET_COMMIT, OFFSET_FETCH = 24, 25, 26, 28, 9


class RawProducer:
    """The producer `id` at a connection; each call returns the code of its response."""

    def __init__(self, wire: Wire, id: str = "payments", *, timeout_ms: int = 60_000) -> None:
        self.wire, self.id, self.timeout_ms = wire, id, timeout_ms
        self.producer_id, self.epoch = -1, -1
        self.sequences: dict[tuple[str, int], int] = {}

    def init(self, version: int = 4, *, again: bool = False) -> ErrorCode:
        """Begin; `again` says who it was before."""
        answer = self.wire.answer(22, version, self.ask_init(version, again=again))
        if answer.error_code is ErrorCode.none:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return answer.error_code

    def ask_init(self, version: int = 4, *, again: bool = False) -> int:
        """Ask for what `init` does, and do not wait for the answer; returns the number of the request."""
        fields: dict[str, Any] = {
            "transactional_id": self.id,
            "transaction_timeout": datetime.timedelta(milliseconds=self.timeout_ms),
        }
        if version >= 3:
            fields["producer_id"], fields["producer_epoch"] = (self.producer_id, self.epoch) if again else (-1, -1)
        return self.wire.send(22, version, **fields)

    def add(self, *locations: tuple[str, int], version: int = 3) -> list[ErrorCode]:
        """AddPartitionsToTxn."""
        schema = import_module(f"kio.schema.add_partitions_to_txn.v{version}.request")
        topics = tuple(schema.AddPartitionsToTxnTopic(name=name, partitions=(number,)) for name, number in locations)
        answer = self.wire.ask(
            ADD_PARTITIONS,
            version,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=topics,
        )
        return [
            result.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        ]

    def send(self, value: bytes, number: int = 0, *, topic: str = "clicks", id: str | None = "") -> ErrorCode:
        sequence = self.sequences.get((topic, number), 0)
        producer = (self.producer_id, self.epoch, sequence)
        data = batch([record(0, 0, b"k", value)], attributes=TRANSACTIONAL, producer=producer)
        fields = {**produce_fields(9, [(topic, number, data)]), "transactional_id": self.id if id == "" else id}
        body = self.wire.ask(PRODUCE, 9, **fields)
        ((answer,),) = [response.partition_responses for response in body.responses]
        if answer.error_code is ErrorCode.none:
            self.sequences[topic, number] = sequence + 1
        return answer.error_code

    def end(self, *, committed: bool = True, version: int = 3) -> ErrorCode:
        """EndTxn."""
        return self.end_of(self.ask_end(committed=committed, version=version), version=version)

    def ask_end(self, *, committed: bool = True, version: int = 3) -> int:
        """Send EndTxn, and do not wait for the answer; returns the number of the request."""
        return self.wire.send(
            END_TXN,
            version,
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=committed,
        )

    def end_of(self, number: int, *, version: int = 3) -> ErrorCode:
        code: ErrorCode = self.wire.answer(END_TXN, version, number).error_code
        return code

    def add_offsets(self, group: str = "billing") -> ErrorCode:
        """AddOffsetsToTxn."""
        answer = self.wire.ask(
            ADD_OFFSETS,
            3,
            transactional_id=self.id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return answer.error_code

    def commit_offset(
        self, offset: int, number: int = 0, *, group: str = "billing", generation: int = -1
    ) -> ErrorCode:
        """TxnOffsetCommit of one position in `clicks`."""
        schema = import_module("kio.schema.txn_offset_commit.v3.request")
        partition = schema.TxnOffsetCommitRequestPartition(
            partition_index=number, committed_offset=offset, committed_leader_epoch=-1, committed_metadata="m"
        )
        answer = self.wire.ask(
            TXN_OFFSET_COMMIT,
            3,
            transactional_id=self.id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            generation_id=generation,
            member_id="",
            group_instance_id=None,
            topics=(schema.TxnOffsetCommitRequestTopic(name="clicks", partitions=(partition,)),),
        )
        ((code,),) = [[partition.error_code for partition in topic.partitions] for topic in answer.topics]
        return code


def position(wire: Wire, number: int = 0, *, group: str = "billing", stable: bool = False) -> int | ErrorCode:
    """The committed offset of a group in `clicks`; -1 if it has none."""
    schema = import_module("kio.schema.offset_fetch.v7.request")
    topics = (schema.OffsetFetchRequestTopic(name="clicks", partition_indexes=(number,)),)
    answer = wire.ask(OFFSET_FETCH, 7, group_id=group, topics=topics, require_stable=stable)
    ((partition,),) = [topic.partitions for topic in answer.topics]
    return partition.committed_offset if partition.error_code is ErrorCode.none else partition.error_code

"""TxnOffsetCommit: positions of a group that count when the producer's transaction is committed."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.consumer_offsets.positions_format import OFFSETS_TOPIC, encode_position
from distlog.gateway.apis.asked_positions import AskedPositions
from distlog.gateway.apis.transaction_attempts import tried
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of, transactions_of
from distlog.gateway.groups.committed_offsets import GroupChanges
from distlog.gateway.groups.offsets.offsets_format import encode_key
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request
from distlog.gateway.transactions.own_records import own_batch
from distlog.gateway.transactions.transaction_state import ProducerId


def handle(request: Request, broker: Broker) -> Fields:
    """Keep the positions, on the device, until the transaction ends."""
    asked, code = AskedPositions(request, broker), ErrorCode.none
    if asked.positions:
        code = tried(lambda: _keep(request, broker, asked), fenced=ErrorCode.invalid_producer_epoch)
    return {"throttle_time": 0, "topics": asked.topics(code)}


def _keep(request: Request, broker: Broker, asked: AskedPositions) -> None:
    body, groups = request.body, groups_of(broker)
    producer = ProducerId(body.producer_id, body.producer_epoch)
    hosted, number = broker.metadata.fresh_topic(OFFSETS_TOPIC), groups.partition_of(body.group_id)
    # who took over the groups meanwhile does not know of what is appended now
    is_led = groups.fence(number)
    is_open = transactions_of(broker).fence(body.transactional_id, producer, (OFFSETS_TOPIC, number))

    def fence(snapshot: Snapshot) -> None:
        is_led(snapshot)
        is_open(snapshot)

    def append(changes: GroupChanges) -> None:
        records = [(encode_key(key), encode_position(each) if each else None) for key, each in changes]
        hosted.append_run(number, own_batch(records, broker.clock(), producer), fence)

    groups.offsets.commit_in_transaction(
        body.group_id,
        asked.positions,
        producer.id,
        append,
        member_id=request.get("member_id", ""),
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id", -1),
    )


API = Api(28, "TxnOffsetCommit", 0, 3, handle)

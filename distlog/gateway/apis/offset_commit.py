"""OffsetCommit: keep how far a group has come; the response waits until that is durable."""

from __future__ import annotations

from distlog.gateway.apis.asked_positions import AskedPositions
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.server.request import Request


def handle(request: Request, broker: Broker) -> None:
    """Keep the positions."""
    body, asked = request.body, AskedPositions(request, broker)
    groups_of(broker).offsets.commit(
        body.group_id,
        asked.positions,
        lambda code: request.respond({"throttle_time": 0, "topics": asked.topics(code)}),
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        generation=request.get("generation_id_or_member_epoch", -1),
    )


API = Api(8, "OffsetCommit", 2, 9, handle)

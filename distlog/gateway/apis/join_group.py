"""JoinGroup: be a member of the next generation; the response waits for the other members."""

from __future__ import annotations

from typing import Any

from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.groups.members.exchanges import Join, JoinReply
from distlog.gateway.server.request import Request

#: From here on a client learns its id before it is a member (KIP-394), or that it need not assign (KIP-814).
_KNOWS_ITS_ID, _MAY_SKIP = 4, 9
_NULL_PROTOCOL = 7


def handle(request: Request, broker: Broker) -> None:
    """Respond when the generation begins."""
    body = request.body
    session_ms = _ms(body.session_timeout)
    join = Join(
        member_id=body.member_id,
        instance_id=request.get("group_instance_id"),
        client_id=request.client_id,
        client_host=f"/{request.session.address[0]}",
        # version 0 has one time for both
        rebalance_timeout_ms=_ms(request.get("rebalance_timeout", body.session_timeout)),
        session_timeout_ms=session_ms,
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in body.protocols),
        must_know_id=request.api_version >= _KNOWS_ITS_ID,
        may_skip_assignment=request.api_version >= _MAY_SKIP,
    )
    groups_of(broker).members.join(body.group_id, join, lambda reply: _respond(request, reply))


def _ms(duration: Any) -> int:
    return int(duration.total_seconds() * 1000)


def _respond(request: Request, reply: JoinReply) -> None:
    request.respond(
        {
            "throttle_time": 0,
            "error_code": reply.error,
            "generation_id": reply.generation,
            "protocol_type": reply.protocol_type,
            # null from version 7 on alone
            "protocol_name": reply.protocol if request.api_version >= _NULL_PROTOCOL else reply.protocol or "",
            "leader": reply.leader,
            "skip_assignment": reply.skip_assignment,
            "member_id": reply.member_id,
            "members": [
                {"member_id": member.id, "group_instance_id": member.instance_id, "metadata": member.subscription}
                for member in reply.members
            ],
        }
    )


API = Api(11, "JoinGroup", 0, 9, handle)

"""OffsetFetch: how far groups have come."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from distlog.core.consumer_offsets.kafka_positions import committed_of
from distlog.core.consumer_offsets.positions_format import Position
from distlog.core.errors import CorruptionError, UnsupportedVersionError
from distlog.core.groups.group_state import GroupState
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import follow_groups_of, groups_of
from distlog.gateway.groups.members.exchanges import GroupRefusedError
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_log = logging.getLogger("distlog.gateway")

#: A position; why there is none to tell; or None.
Found = Position | ErrorCode | None

#: What a group is told that has no position: its client begins where `auto.offset.reset` says.
_NONE = Position(-1)


def handle(request: Request, broker: Broker) -> None:
    """The positions of one group, or of several from version 8 on.

    Followers may have come further, which the storage tells: so another thread responds.
    """
    follow_groups_of(broker).later(request, lambda: request.respond(_fields(request, broker)))


def _fields(request: Request, broker: Broker) -> Fields:
    groups, stable = request.get("groups"), request.get("require_stable", False)
    if groups is None:
        return {"throttle_time": 0, **_group(broker, request.body, stable)}
    told = [{"group_id": each.group_id, **_group(broker, each, stable)} for each in groups]
    return {"throttle_time": 0, "groups": told}


def _group(broker: Broker, asked: Any, stable: bool) -> Fields:
    # no list of topics asks for all positions of the group
    wanted = None if asked.topics is None else _places(asked.topics)
    code = ErrorCode.none
    try:
        found = _positions(broker, asked.group_id, wanted, stable)
    except GroupRefusedError as refused:
        code = refused.code
    except (CorruptionError, UnsupportedVersionError) as error:
        _log.error("the positions of followers cannot be read: %s", error)
        code = ErrorCode.unknown_server_error
    except Exception as error:
        _log.error("the positions of followers are not known: %s", error)
        # without a position a client would begin anew: it shall ask again
        code = ErrorCode.coordinator_load_in_progress
    if code is not ErrorCode.none:
        # version 1 has a place for it at the partitions alone; without, a client would begin anew
        found = dict.fromkeys(wanted or (), code)
    return {"error_code": code, "topics": _topics(found)}


def _positions(
    broker: Broker, group: str, wanted: Sequence[TopicPartition] | None, stable: bool
) -> dict[TopicPartition, Found]:
    """Where the group is in each place, by itself or by its followers."""
    # read first: our own positions are then as new as those that the followers have seen, or on their way
    followers = follow_groups_of(broker).states(group, None if wanted is None else {topic for topic, _ in wanted})
    offsets = groups_of(broker).offsets
    of_followers = {(topic, number) for topic, state in followers.items() for number in state.positions}
    storing = offsets.storing(group, of_followers)
    own = offsets.fetch(group, wanted, stable=stable)
    places = sorted({*own, *of_followers}) if wanted is None else wanted
    found = {place: _newest(own.get(place), followers.get(place[0]), place, place in storing) for place in places}
    return {place: each for place, each in found.items() if wanted is not None or each is not None}


def _newest(own: Found, followers: GroupState | None, place: TopicPartition, is_storing: bool) -> Found:
    if followers is None or isinstance(own, ErrorCode):
        return own
    partition, committed = place[1], None if own is None else committed_of(own)
    seen = followers.kafka.get(partition)
    if is_storing and seen is not None and (committed is None or committed.commit_ms < seen.commit_ms):
        # followers have read it in the log, and we have not been told yet that it is there
        committed = seen
    offset = followers.position(partition, committed)
    if offset is None:
        # where the followers have forgotten it, what they have seen of ours does not count either
        return own if committed is None else None
    return own if own is not None and own.offset == offset else Position(offset)


def _places(topics: Any) -> list[TopicPartition]:
    return [(topic.name, number) for topic in topics for number in topic.partition_indexes]


def _topics(found: Mapping[TopicPartition, Found]) -> list[Fields]:
    topics: dict[str, list[Fields]] = {}
    for (topic, partition), each in found.items():
        told = each if isinstance(each, Position) else _NONE
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": told.offset,
                "committed_leader_epoch": told.leader_epoch,
                "metadata": told.metadata,
                "error_code": each if isinstance(each, ErrorCode) else ErrorCode.none,
            }
        )
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


API = Api(9, "OffsetFetch", 1, 9, handle)

"""The positions in a request that commits them, and the answer of each partition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kio.schema.errors import ErrorCode

from distlog.core.consumer_offsets.positions_format import Position
from distlog.core.errors import DistlogError, StorageError
from distlog.gateway.broker import Broker
from distlog.gateway.groups.offsets.positions import TopicPartition
from distlog.gateway.protocol.error_codes import error_code
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_NO_EPOCH = -1


class AskedPositions:
    """What a client commits: the positions in partitions that there are; the others are told that there are none."""

    def __init__(self, request: Request, broker: Broker) -> None:
        asked = _asked(request, broker.clock())
        self._topics, self._told = request.body.topics, {place: _code(broker, place) for place in asked}
        self.positions = {place: each for place, each in asked.items() if self._told[place] is ErrorCode.none}

    def topics(self, code: ErrorCode) -> list[Fields]:
        """The answer; `code` is that of all partitions which were not refused before."""
        return list(self._answers(code))

    def _answers(self, code: ErrorCode) -> Iterator[Fields]:
        for topic in self._topics:
            partitions = []
            for each in topic.partitions:
                refused = self._told[topic.name, each.partition_index]
                error = code if refused is ErrorCode.none else refused
                partitions.append({"partition_index": each.partition_index, "error_code": error})
            yield {"name": topic.name, "partitions": partitions}


def _asked(request: Request, now_ms: int) -> Mapping[TopicPartition, Position]:
    return {
        (topic.name, each.partition_index): Position(
            each.committed_offset,
            getattr(each, "committed_leader_epoch", _NO_EPOCH),
            each.committed_metadata or "",
            now_ms,
        )
        for topic in request.body.topics
        for each in topic.partitions
    }


def _code(broker: Broker, place: TopicPartition) -> ErrorCode:
    try:
        broker.metadata.topic(place[0]).partition(place[1])
    except StorageError:
        # no coordinator of Kafka's tells a storage's own code: this is the one to try again
        return ErrorCode.coordinator_not_available
    except DistlogError as error:
        return error_code(error)
    return ErrorCode.none

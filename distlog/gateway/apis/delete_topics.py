"""DeleteTopics: ends topics, and what groups have read of them; vacuum deletes their files."""

from __future__ import annotations

from functools import partial
from typing import Any

from distlog.gateway.apis.attempts import attempted
from distlog.gateway.apis.metadata import name_of, topic_uuid
from distlog.gateway.broker import Api, Broker
from distlog.gateway.broker_parts import groups_of
from distlog.gateway.protocol.response_frame import Fields
from distlog.gateway.server.request import Request

_BY_STATE = 6


def handle(request: Request, broker: Broker) -> Fields:
    """End each topic, by name or, since version 6, by id."""
    if request.api_version < _BY_STATE:
        names = list(request.body.topic_names)
        responses = [attempted(partial(_drop, broker, name), name=name) for name in names]
    else:
        responses = [
            attempted(partial(_drop_state, broker, topic), name=topic.name, topic_id=topic.topic_id)
            for topic in request.body.topics
        ]
    return {"throttle_time": 0, "responses": responses}


def _drop_state(broker: Broker, topic: Any) -> Fields:
    return _drop(broker, name_of(broker, topic.name, topic.topic_id))


def _drop(broker: Broker, name: str) -> Fields:
    dropped = broker.metadata.drop(name)
    groups_of(broker).offsets.forget_topic(name)
    return {"name": name, "topic_id": topic_uuid(dropped)}


API = Api(20, "DeleteTopics", 1, 6, handle)

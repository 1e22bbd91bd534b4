"""What goes wrong for one member must not end the time of all groups, nor keep others from their answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from consumer_groups import Gateway
from gateways import until
from kio.schema.errors import ErrorCode

from distlog.core.storage.storage import Storage
from distlog.gateway.cluster.gateway_lease import GatewayLease
from distlog.gateway.group_settings import GroupSettings
from distlog.gateway.groups.offsets.offsets_topic import OffsetsTopic
from distlog.gateway.groups.services import GroupServices
from distlog.gateway.protocol.request_frame import RequestHead
from distlog.gateway.server.request import ClientSession, Request


def test_an_error_does_not_end_the_time_of_all_groups(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    store, lease = OffsetsTopic(str(tmp_path), linger_ms=0), GatewayLease(Storage(str(tmp_path)), None, 9.0)
    services = GroupServices(store, lease, GroupSettings(), retention_ms=1000)
    looks = []

    def expire() -> None:
        looks.append(1)
        services._wake.set()
        if len(looks) == 1:
            raise RuntimeError("a mistake of ours")

    services._registry.expire = expire  # type: ignore[method-assign]
    services.start()
    try:
        until(lambda: len(looks) > 1)
    finally:
        services._registry.expire = lambda: None  # type: ignore[method-assign]
        services.stop()
    assert "a mistake of ours" in caplog.text


def test_an_answer_that_cannot_be_written_ends_its_connection_alone() -> None:
    ended: list[str] = []
    session = ClientSession(("", 0), ("", 0), "ANONYMOUS", None)
    answers: Any = {"send": lambda _: None, "send_last": lambda *_: None, "hang_up": ended.append}
    request = Request(RequestHead(12, 4, 1), None, session, 0, **answers, body=object())
    request.respond({"throttle_time": 0, "error_code": "no code"})
    assert ended == ["the response cannot be written"]


def test_names_that_no_record_of_the_group_could_hold_are_refused() -> None:
    gateway = Gateway()
    # an id is the client's name, and 37 bytes more
    assert gateway.member("c" * 32_760).join().told is ErrorCode.invalid_request
    assert gateway.member("c", instance_id="i" * 32_760).join().told is ErrorCode.invalid_request
    long_name = (("p" * 40_000, b""),)
    assert gateway.member("c", protocols=long_name).join().told is ErrorCode.invalid_request
    assert gateway.member("c" * 1000).join().told is None

"""Members live while all threads that handle records wait for a slow storage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from gateways import INIT_PRODUCER_ID, NO_WAIT, Wire, serving
from kio.schema.errors import ErrorCode

from distlog.gateway.kafka_apis import APIS

HEARTBEAT = 12


def test_signs_of_life_do_not_wait_behind_requests_that_wait_for_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, waits = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        waits.set()
        goes_on.wait(120)

    monkeypatch.setitem(APIS, INIT_PRODUCER_ID, APIS[INIT_PRODUCER_ID]._replace(handle=slow))
    with serving(tmp_path, num_io_threads=1) as gateway, Wire(gateway) as busy, Wire(gateway) as member:
        busy.send(INIT_PRODUCER_ID, 4, transactional_id=None, transaction_timeout=NO_WAIT)
        assert waits.wait(120)
        member.socket.settimeout(60)
        try:
            told = member.ask(
                HEARTBEAT, 4, group_id="billing", generation_id=1, member_id="a", group_instance_id=None
            )
            assert told.error_code is ErrorCode.unknown_member_id
        finally:
            goes_on.set()
            busy.socket.close()

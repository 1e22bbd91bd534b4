"""What clients are told when a gateway does not learn of followers, or fails: they do not wait for ever."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateways import Wire, opened
from gateways import gateway as gateway
from kio.schema.errors import ErrorCode
from transactional_clients import position

from distlog.core import paths
from distlog.core.errors import StorageError
from distlog.core.groups.group_log import GroupLog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.groups.group_admin import GroupAdmin

LIST_GROUPS, DELETE_GROUPS = 16, 42


def make_group(gateway: GatewayServer) -> None:
    opened(gateway).reset_group("billing", 0)


def test_while_the_storage_does_not_answer_groups_are_listed_without_those_of_followers(
    gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: GroupLog) -> Any:
        raise StorageError("no answer")

    make_group(gateway)
    monkeypatch.setattr(GroupLog, "load", fails)
    with Wire(gateway) as wire:
        told = wire.ask(LIST_GROUPS, 4, states_filter=())
    assert told.error_code is ErrorCode.coordinator_not_available
    assert told.groups == ()


def test_a_client_does_not_wait_for_work_that_failed(gateway: GatewayServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Any:
        raise RuntimeError("no more threads")

    make_group(gateway)
    monkeypatch.setattr(GroupAdmin, "delete", fails)
    with Wire(gateway) as wire, pytest.raises(EOFError):
        wire.ask(DELETE_GROUPS, 2, groups_names=("billing",))


def test_a_group_whose_file_is_damaged_is_told_so_and_clients_do_not_ask_for_ever(gateway: GatewayServer) -> None:
    make_group(gateway)
    (file,) = Path(opened(gateway).url, paths.GROUPS_DIR).rglob("*.json")
    file.write_bytes(file.read_bytes().replace(b'"billing"', b'"billinG"'))
    with Wire(gateway) as wire:
        assert position(wire) is ErrorCode.unknown_server_error

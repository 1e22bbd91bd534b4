"""The number of requests to an S3 server per operation, over all layers that could retry."""

from __future__ import annotations

import pytest
from fault_proxy import (
    FOREVER,
    FaultProxy,
    answer,
    overlap,
)
from proxied_storage import MIB, NAME, OURS, THEIRS
from proxied_storage import direct as direct
from proxied_storage import proxy as proxy
from proxied_storage import running_proxy as running_proxy
from proxied_storage import storage as storage

from distlog.core.errors import StorageError
from distlog.core.storage import calls
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.s3


def requests(proxy: FaultProxy) -> list[str]:
    return [request.method for request in proxy.requests]


def test_a_read_is_one_get(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put("a", b"0123456789")
    for arguments in ((), (3,), (2, 5), (0, 99), (50,)):
        proxy.reset()
        storage.read("a", *arguments)
        assert requests(proxy) == ["GET"]


def test_a_read_of_a_missing_object_is_one_get(proxy: FaultProxy, storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("missing")
    assert requests(proxy) == ["GET"]


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown")])
def test_a_try_is_one_request(
    proxy: FaultProxy, storage: Storage, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 0)
    proxy.inject("GET", answer(status, code), times=FOREVER)
    with pytest.raises(StorageError, match=code):
        storage.read("a")
    # two tries: a server that has answered before gets at least two requests
    assert requests(proxy) == ["GET", "GET"]


def test_a_put_is_one_put(proxy: FaultProxy, storage: Storage) -> None:
    storage.put("a", b"1")
    with storage.open_write("b") as writer:
        writer.write(bytes(9 * MIB))
    assert requests(proxy) == ["PUT", "PUT"]


def test_a_put_if_absent_that_wins_is_one_put_and_one_that_loses_reads_back_once(
    proxy: FaultProxy, storage: Storage
) -> None:
    storage.put_if_absent(NAME, OURS)
    assert requests(proxy) == ["PUT"]
    assert proxy.requests[0].headers["If-None-Match"] == "*"
    storage.put_if_absent(NAME, THEIRS)
    assert requests(proxy) == ["PUT", "PUT", "GET"]


def test_close_ranges_are_one_small_get(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put("a", bytes(2 * MIB))
    storage.read_ranges([("a", 100, 200), ("a", 300, 400), ("a", MIB, MIB + 10)])
    assert requests(proxy) == ["GET", "GET"]
    assert sorted(request.reply_bytes for request in proxy.requests) == [10, 300]


def test_ranges_of_several_files_are_read_at_the_same_time(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    names = [str(number) for number in range(32)]
    direct.put_many(dict.fromkeys(names, b"12345"))
    proxy.inject("GET", overlap(32), times=32)
    storage.read_ranges([(name, 0, 5) for name in names])
    assert (proxy.most_at_once, proxy.count("GET")) == (32, 32)


def test_a_thousand_files_are_deleted_in_one_request(proxy: FaultProxy, storage: Storage) -> None:
    storage.delete([f"f/{number}" for number in range(1000)])
    assert requests(proxy) == ["POST"]
    storage.delete([f"f/{number}" for number in range(1001)])
    assert requests(proxy) == ["POST"] * 3


def test_a_listing_is_one_request(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put_many({"f/a": b"1", "f/b": b"2"})
    storage.list("f")
    assert requests(proxy) == ["GET"]

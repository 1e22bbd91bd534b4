"""Faulty requests to an S3 server: puts, reads, uploads, deletes, listings."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from fault_proxy import (
    CUT,
    FOREVER,
    LOSE_REPLY,
    Fault,
    FaultProxy,
    act_but_answer,
    answer,
    delay,
    truncate_reply,
)
from proxied_storage import LATE_S, MIB
from proxied_storage import direct as direct
from proxied_storage import impatient as impatient
from proxied_storage import proxy as proxy
from proxied_storage import running_proxy as running_proxy
from proxied_storage import storage as storage

from distlog.core.errors import StorageError, StorageRefusedError
from distlog.core.storage import calls
from distlog.core.storage.storage import Storage, check_store
from distlog.core.times import now_ms

pytestmark = pytest.mark.s3


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(LOSE_REPLY, id="41 stored, the reply is lost"),
        pytest.param(CUT, id="42 the connection breaks before"),
        pytest.param(answer(500, "InternalError"), id="43 the server fails"),
        pytest.param(answer(503, "SlowDown"), id="44 slow down"),
        pytest.param(answer(409, "OperationAborted"), id="45 another request is under way"),
    ],
)
def test_a_put_is_retried(fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    proxy.inject("PUT", fault, times=3)
    storage.put_many({"f/a": b"1", "f/b": b"2"})
    assert (direct.read("f/a"), direct.read("f/b")) == (b"1", b"2")


@pytest.mark.parametrize("body", [b"", b"12"])
def test_the_proxy_passes_no_request_whose_client_died_within_it(body: bytes, proxy: FaultProxy) -> None:
    address = urlsplit(proxy.url)
    with socket.create_connection((address.hostname, address.port)) as client:
        client.sendall(b"PUT /bucket/cut HTTP/1.1\r\nHost: proxy\r\nContent-Length: 5\r\n\r\n" + body)
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    assert proxy.count("PUT") == 0


def test_46_a_put_that_is_refused_fails_at_once(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("PUT", answer(403, "AccessDenied"), times=FOREVER)
    with pytest.raises(StorageError, match="AccessDenied"):
        storage.put("a", b"1")
    assert proxy.count("PUT") == 1


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(LOSE_REPLY, id="51 the reply is lost"),
        pytest.param(CUT, id="52 the connection breaks before"),
        pytest.param(answer(500, "InternalError"), id="53 the server fails"),
        pytest.param(answer(503, "SlowDown"), id="54 slow down"),
        pytest.param(truncate_reply(4), id="55 half of the body"),
        pytest.param(truncate_reply(0), id="56 no body"),
    ],
)
def test_a_read_is_retried(fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put("a", b"0123456789")
    proxy.inject("GET", fault)
    assert storage.read("a") == b"0123456789"
    proxy.inject("GET", fault)
    assert storage.read("a", 2, 9) == b"2345678"


def test_57_a_read_with_a_late_response_is_retried(proxy: FaultProxy, impatient: Storage, direct: Storage) -> None:
    direct.put("a", b"0123456789")
    proxy.inject("GET", delay(LATE_S))
    assert impatient.read("a") == b"0123456789"


def test_58_a_read_gives_up_at_its_deadline(
    proxy: FaultProxy, storage: Storage, direct: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.put("a", b"1")
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 0.1)
    proxy.inject("GET", answer(503, "SlowDown"), times=FOREVER)
    with pytest.raises(StorageError, match="SlowDown"):
        storage.read("a")
    proxy.reset()
    proxy.inject("GET", CUT, times=FOREVER)
    with pytest.raises(StorageError, match="cannot read"):
        storage.read_ranges([("a", 0, 1), ("b", 0, 1)])


def test_a_read_of_a_stopped_process_is_retried_once(
    proxy: FaultProxy, storage: Storage, direct: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.put("a", b"0123456789")
    # 1. the server has answered before
    storage.read("a")
    # 2. the time is over when the next request fails
    monkeypatch.setattr(calls, "RETRY_TIMEOUT_S", 0)
    proxy.inject("GET", CUT)
    # 3. the server answers again
    assert storage.read("a") == b"0123456789"


@pytest.mark.parametrize(
    "call",
    [
        lambda storage: list(storage.list_after("f")),
        lambda storage: storage.now_ms("f"),
        lambda storage: storage.uploads(),
    ],
    ids=["list", "time", "uploads"],
)
def test_an_unspecific_404_of_a_bucket_is_a_refusal(
    call: Callable[[Storage], object], proxy: FaultProxy, storage: Storage
) -> None:
    """A 404 that no S3 store sends, as of a web server: a request of the whole bucket cannot miss an object."""
    proxy.inject("*", answer(404, "404"), times=FOREVER)
    with pytest.raises(StorageRefusedError, match="bucket or container does not exist"):
        call(storage)
    assert len(proxy.requests) == 1


def test_a_store_that_refuses_the_first_put_gets_no_more_requests(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("*", answer(404, "404"), times=FOREVER)
    report = check_store(storage, now_ms, time.monotonic)
    assert "bucket or container does not exist" in report.checks[0].about
    assert [request.method for request in proxy.requests] == ["PUT"]


def test_59_a_read_that_is_refused_fails_at_once(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("GET", answer(403, "AccessDenied"), times=FOREVER)
    with pytest.raises(StorageError, match="ListBucket"):
        storage.read("a")
    assert proxy.count("GET") == 1


def test_60_one_failing_range_of_many_fails_the_read(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put_many(dict.fromkeys("abc", b"12345"))
    proxy.inject("GET", answer(403, "AccessDenied"), path="*/b")
    with pytest.raises(StorageError, match="AccessDenied"):
        storage.read_ranges([(name, 1, 3) for name in "abc"])


@pytest.mark.parametrize(
    ("method", "fault", "skip"),
    [
        pytest.param("POST", answer(500, "InternalError"), 0, id="71 the upload cannot start"),
        pytest.param("PUT", answer(503, "SlowDown"), 1, id="72 a part meets slow down"),
        pytest.param("PUT", LOSE_REPLY, 0, id="73 the reply to a part is lost"),
        pytest.param("PUT", CUT, 2, id="74 the connection breaks in a part"),
        pytest.param("POST", LOSE_REPLY, 1, id="75 completed, the reply is lost"),
        pytest.param("POST", act_but_answer(500, "InternalError"), 1, id="76 completed, and yet an error"),
        pytest.param("POST", answer(503, "SlowDown"), 1, id="77 completion meets slow down"),
    ],
)
def test_a_multipart_upload_survives(
    method: str, fault: Fault, skip: int, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    data = bytes(range(256)) * (70 * 1024)
    proxy.inject(method, fault, skip=skip)
    with storage.open_write("big") as writer:
        writer.write(data)
    assert direct.read("big") == data


def test_78_a_multipart_upload_that_is_refused_leaves_no_parts(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("PUT", answer(403, "AccessDenied"), skip=1, times=FOREVER)
    with pytest.raises(StorageError, match="AccessDenied"), storage.open_write("big") as writer:
        writer.write(bytes(48 * MIB))
    assert proxy.count("DELETE") == 1
    assert direct.list() == []


def test_79_an_upload_that_vanished_is_not_called_complete(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("POST", answer(404, "NoSuchUpload"), skip=1, times=FOREVER)
    with (
        pytest.raises(StorageError, match="another process aborted it"),
        storage.open_write("big") as writer,
    ):
        writer.write(bytes(17 * MIB))


def test_82_an_upload_that_vanished_under_its_parts_is_not_a_missing_file(
    proxy: FaultProxy, storage: Storage
) -> None:
    proxy.inject("PUT", answer(404, "NoSuchUpload"), skip=1, times=FOREVER)
    with (
        pytest.raises(StorageError, match="another process aborted it"),
        storage.open_write("big") as writer,
    ):
        writer.write(bytes(48 * MIB))


def test_80_deletes_and_listings_are_retried(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put_many({"f/a": b"1", "f/b": b"2"})
    proxy.inject("GET", answer(503, "SlowDown"), times=2)
    assert len(storage.list("f")) == 2
    proxy.inject("POST", LOSE_REPLY)
    proxy.inject("POST", answer(503, "SlowDown"))
    storage.delete(["f/a", "f/b"])
    assert direct.list("f") == []


def test_81_a_lost_response_to_a_completion_succeeds(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    proxy.inject("POST", act_but_answer(503, "SlowDown"), skip=1)
    proxy.inject("POST", answer(404, "NoSuchUpload"), times=FOREVER, skip=1)
    with storage.open_write("big") as writer:
        writer.write(bytes(17 * MIB))
    assert direct.size("big") == 17 * MIB

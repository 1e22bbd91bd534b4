"""Stories of requests that go wrong between a client and an S3 server, and what storage must make of them.

Each story of a put-if-absent names the fault, then what must be true: no lost write is called a success, no
write that landed is called a loss, and when it cannot be known, that is what is said.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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
from waiting import until

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage import retry as storage_retry
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.s3

NAME = "_commits/00000000000000000007.json"
OURS, THEIRS = b'{"id": "ours"}', b'{"id": "theirs"}'
MIB = 1024 * 1024


@pytest.fixture(scope="module", params=[False, True], ids=["new connections", "kept connections"])
def running_proxy(request: pytest.FixtureRequest, s3_server: Any) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint, keep_alive=request.param) as running:
        yield running


@pytest.fixture
def proxy(running_proxy: FaultProxy) -> FaultProxy:
    running_proxy.reset()
    return running_proxy


@pytest.fixture
def direct(s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage as everybody else sees it, without faults."""
    return Storage(*s3_url)


@pytest.fixture
def storage(proxy: FaultProxy, s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage through the proxy, on a connection that is already in use."""
    return through(proxy, s3_url)


@pytest.fixture
def impatient(proxy: FaultProxy, s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage through the proxy, with a client that waits a second for a reply."""
    return through(proxy, s3_url, config_kwargs={"read_timeout": 1})


def through(proxy: FaultProxy, address: tuple[str, dict[str, Any]], **more: Any) -> Storage:
    url, options = address
    opened = Storage(url, {**options, **more, "endpoint_url": proxy.url})
    opened.list()
    proxy.reset()
    return opened


# --- put-if-absent: faults that pass


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(LOSE_REPLY, id="01 stored, the reply is lost"),
        pytest.param(CUT, id="02 the connection breaks before"),
        pytest.param(answer(409, "ConditionalRequestConflict"), id="03 another conflicting request is under way"),
        pytest.param(act_but_answer(409, "ConditionalRequestConflict"), id="04 stored, and yet a conflict"),
        pytest.param(answer(412, "PreconditionFailed"), id="05 it is said to exist, and does not"),
        pytest.param(act_but_answer(412, "PreconditionFailed"), id="06 it exists because we stored it"),
        pytest.param(answer(500, "InternalError"), id="07 the server fails before"),
        pytest.param(act_but_answer(500, "InternalError"), id="08 the server fails after storing"),
        pytest.param(answer(503, "SlowDown"), id="09 slow down"),
        pytest.param(act_but_answer(503, "SlowDown"), id="10 stored, and yet slow down"),
        pytest.param(answer(503, "ServiceUnavailable"), id="11 not available"),
        pytest.param(answer(400, "RequestTimeout"), id="12 the body came too slowly"),
    ],
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_write_that_met_a_passing_fault_is_ours(
    fault: Fault, times: int, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("PUT", fault, times=times)
    assert storage.put_if_absent(NAME, OURS, timeout_s=30) == OURS
    assert direct.read(NAME) == OURS


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(LOSE_REPLY, id="13 the reply that we lost is lost"),
        pytest.param(CUT, id="14 the connection breaks before"),
        pytest.param(answer(409, "ConditionalRequestConflict"), id="15 a conflict is under way"),
        pytest.param(answer(412, "PreconditionFailed"), id="16 a reply that does not name its condition"),
        pytest.param(answer(500, "InternalError"), id="17 the server fails"),
    ],
)
def test_a_write_that_lost_and_met_a_fault_is_theirs(
    fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    direct.put_if_absent(NAME, THEIRS)
    proxy.inject("PUT", fault)
    assert storage.put_if_absent(NAME, OURS, timeout_s=30) == THEIRS
    assert direct.read(NAME) == THEIRS


def test_18_stored_the_reply_is_lost_and_the_read_back_fails_too(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("PUT", LOSE_REPLY)
    proxy.inject("GET", answer(503, "SlowDown"))
    proxy.inject("GET", CUT, times=2)
    assert storage.put_if_absent(NAME, OURS, timeout_s=30) == OURS


def test_19_the_other_writer_comes_in_after_our_connection_broke(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("PUT", CUT, times=3)
    proxy.inject("GET", answer(503, "SlowDown"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError):
        storage.put_if_absent(NAME, OURS, timeout_s=0.2)
    direct.put_if_absent(NAME, THEIRS)
    proxy.reset()
    assert storage.put_if_absent(NAME, OURS) == THEIRS


def test_20_a_delayed_put_lands_after_we_put_again(proxy: FaultProxy, impatient: Storage, direct: Storage) -> None:
    proxy.inject("PUT", delay(1.5))
    assert impatient.put_if_absent(NAME, OURS, timeout_s=30) == OURS
    assert direct.put_if_absent(NAME, THEIRS) == OURS
    until(lambda: len([seen for seen in proxy.requests if seen.fault]) == 1)
    assert direct.read(NAME) == OURS


# --- put-if-absent: faults that stay


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(CUT, id="21 nobody answers"),
        pytest.param(LOSE_REPLY, id="22 no reply arrives"),
        pytest.param(answer(503, "SlowDown"), id="23 slow down, for ever"),
    ],
)
def test_no_answer_until_the_deadline_is_an_unknown_outcome_that_can_be_settled_later(
    fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("*", fault, times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="did not say") as raised:
        storage.put_if_absent(NAME, OURS, timeout_s=0.5)
    assert NAME in str(raised.value)
    proxy.reset()
    assert storage.put_if_absent(NAME, OURS) == OURS == direct.read(NAME)


def test_24_stored_but_never_to_be_read_back_is_unknown(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    proxy.inject("PUT", LOSE_REPLY, times=FOREVER)
    proxy.inject("GET", answer(500, "InternalError"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError):
        storage.put_if_absent(NAME, OURS, timeout_s=0.5)
    assert direct.read(NAME) == OURS


def test_25_conflicts_until_the_deadline_are_unknown(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("PUT", answer(409, "ConditionalRequestConflict"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError):
        storage.put_if_absent(NAME, OURS, timeout_s=0.5)


def test_26_a_refusal_after_a_lost_reply_is_unknown_when_the_read_back_is_refused_too(
    proxy: FaultProxy, storage: Storage
) -> None:
    proxy.inject("PUT", LOSE_REPLY)
    proxy.inject("*", answer(403, "ExpiredToken"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="ExpiredToken"):
        storage.put_if_absent(NAME, OURS, timeout_s=30)


def test_27_a_refusal_after_a_broken_connection_is_unknown_though_nothing_is_there(
    proxy: FaultProxy, storage: Storage
) -> None:
    proxy.inject("PUT", CUT, times=2)
    proxy.inject("PUT", answer(403, "AccessDenied"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="AccessDenied"):
        storage.put_if_absent(NAME, OURS, timeout_s=30)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(403, "AccessDenied", id="28 forbidden"),
        pytest.param(403, "SignatureDoesNotMatch", id="29 wrong secret"),
        pytest.param(403, "InvalidAccessKeyId", id="30 wrong key"),
        pytest.param(404, "NoSuchBucket", id="31 no bucket"),
        pytest.param(501, "NotImplemented", id="32 no conditional put"),
        pytest.param(400, "InvalidRequest", id="33 a wrong request"),
    ],
)
def test_a_refusal_is_an_error_at_once(
    status: int, code: str, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("PUT", answer(status, code), times=FOREVER)
    with pytest.raises(StorageError, match=code) as raised:
        storage.put_if_absent(NAME, OURS)
    assert proxy.count("PUT") == 1
    assert "secret" not in str(raised.value)
    assert direct.list("_commits") == []


def test_34_a_real_missing_bucket_is_an_error_at_once(s3_url: tuple[str, dict[str, Any]]) -> None:
    storage = Storage("s3://no-such-bucket-here/a", s3_url[1])
    for call in (
        lambda: storage.put_if_absent(NAME, OURS),
        lambda: storage.put(NAME, OURS),
        lambda: storage.read(NAME),
    ):
        with pytest.raises(StorageError, match="NoSuchBucket"):
            call()


# --- put


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
def test_a_put_is_tried_again(fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    proxy.inject("PUT", fault, times=3)
    storage.put_many({"f/a": b"1", "f/b": b"2"})
    assert (direct.read("f/a"), direct.read("f/b")) == (b"1", b"2")


def test_46_a_put_that_is_refused_fails_at_once(proxy: FaultProxy, storage: Storage) -> None:
    proxy.inject("PUT", answer(403, "AccessDenied"), times=FOREVER)
    with pytest.raises(StorageError, match="AccessDenied"):
        storage.put("a", b"1")
    assert proxy.count("PUT") == 1


# --- read


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
def test_a_read_is_tried_again(fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put("a", b"0123456789")
    proxy.inject("GET", fault)
    assert storage.read("a") == b"0123456789"
    proxy.inject("GET", fault)
    assert storage.read("a", 2, 9) == b"2345678"


def test_57_a_read_whose_reply_comes_too_late_is_tried_again(
    proxy: FaultProxy, impatient: Storage, direct: Storage
) -> None:
    direct.put("a", b"0123456789")
    proxy.inject("GET", delay(1.5))
    assert impatient.read("a") == b"0123456789"


def test_58_a_read_gives_up_at_its_deadline(
    proxy: FaultProxy, storage: Storage, direct: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    direct.put("a", b"1")
    monkeypatch.setattr(storage_retry, "RETRY_TIMEOUT_S", 0.3)
    proxy.inject("GET", answer(503, "SlowDown"), times=FOREVER)
    with pytest.raises(StorageError, match="SlowDown"):
        storage.read("a")
    proxy.reset()
    proxy.inject("GET", CUT, times=FOREVER)
    with pytest.raises(StorageError, match="cannot read"):
        storage.read_ranges([("a", 0, 1), ("b", 0, 1)])


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


# --- multipart uploads, deletes, listings


@pytest.mark.parametrize(
    ("method", "fault", "skip"),
    [
        pytest.param("POST", answer(500, "InternalError"), 0, id="71 the upload cannot be begun"),
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
    with pytest.raises(StorageError, match="upload was aborted"), storage.open_write("big") as writer:
        writer.write(bytes(17 * MIB))


def test_80_deletes_and_listings_are_tried_again(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put_many({"f/a": b"1", "f/b": b"2"})
    proxy.inject("GET", answer(503, "SlowDown"), times=2)
    assert len(storage.list("f")) == 2
    proxy.inject("POST", LOSE_REPLY)
    proxy.inject("POST", answer(503, "SlowDown"))
    storage.delete(["f/a", "f/b"])
    assert direct.list("f") == []


def test_81_completed_the_reply_is_lost_and_the_upload_is_gone(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("POST", act_but_answer(503, "SlowDown"), skip=1)
    proxy.inject("POST", answer(404, "NoSuchUpload"), times=FOREVER, skip=1)
    with storage.open_write("big") as writer:
        writer.write(bytes(17 * MIB))
    assert direct.size("big") == 17 * MIB


# --- how many requests


def requests(proxy: FaultProxy) -> list[str]:
    return [seen.method for seen in proxy.requests]


def test_a_read_is_one_get(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put("a", b"0123456789")
    for arguments in ((), (3,), (2, 5), (0, 99), (50,)):
        proxy.reset()
        storage.read("a", *arguments)
        assert requests(proxy) == ["GET"]


def test_a_read_of_what_is_missing_is_one_get(proxy: FaultProxy, storage: Storage) -> None:
    with pytest.raises(FileNotFoundError):
        storage.read("missing")
    assert requests(proxy) == ["GET"]


@pytest.mark.parametrize(("status", "code"), [(500, "InternalError"), (503, "SlowDown")])
def test_a_try_is_one_request_however_many_layers_could_retry(
    proxy: FaultProxy, storage: Storage, monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    monkeypatch.setattr(storage_retry, "RETRY_TIMEOUT_S", 0)
    proxy.inject("GET", answer(status, code), times=FOREVER)
    with pytest.raises(StorageError, match=code):
        storage.read("a")
    assert requests(proxy) == ["GET"]


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


def test_close_ranges_are_one_get_and_move_no_more_than_they_must(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    direct.put("a", bytes(2 * MIB))
    storage.read_ranges([("a", 100, 200), ("a", 300, 400), ("a", MIB, MIB + 10)])
    assert requests(proxy) == ["GET", "GET"]
    assert sorted(seen.reply_bytes for seen in proxy.requests) == [10, 300]


def test_ranges_of_several_files_are_read_at_the_same_time(
    proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    names = [str(number) for number in range(8)]
    direct.put_many(dict.fromkeys(names, b"12345"))
    proxy.inject("GET", delay(0.3), times=8)
    storage.read_ranges([(name, 0, 5) for name in names])
    assert proxy.most_at_once > 3


def test_a_thousand_files_are_deleted_in_one_request(proxy: FaultProxy, storage: Storage) -> None:
    storage.delete([f"f/{number}" for number in range(1000)])
    assert requests(proxy) == ["POST"]
    storage.delete([f"f/{number}" for number in range(1001)])
    assert requests(proxy) == ["POST"] * 3


def test_a_listing_is_one_request(proxy: FaultProxy, storage: Storage, direct: Storage) -> None:
    direct.put_many({"f/a": b"1", "f/b": b"2"})
    storage.list("f")
    assert requests(proxy) == ["GET"]

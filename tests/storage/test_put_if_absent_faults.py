"""Faulty requests of put-if-absent to an S3 server: a lost write never succeeds, and a stored one never fails."""

from __future__ import annotations

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
)
from proxied_storage import NAME, OURS, THEIRS
from proxied_storage import direct as direct
from proxied_storage import impatient as impatient
from proxied_storage import proxy as proxy
from proxied_storage import running_proxy as running_proxy
from proxied_storage import storage as storage

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.storage import Storage

pytestmark = pytest.mark.s3


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
def test_a_write_with_a_transient_fault_is_ours(
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
def test_a_lost_write_with_a_fault_is_theirs(
    fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    direct.put_if_absent(NAME, THEIRS)
    proxy.inject("PUT", fault)
    assert storage.put_if_absent(NAME, OURS, timeout_s=30) == THEIRS
    assert direct.read(NAME) == THEIRS


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(CUT, id="21 nobody answers"),
        pytest.param(LOSE_REPLY, id="22 no reply arrives"),
        pytest.param(answer(503, "SlowDown"), id="23 slow down, forever"),
    ],
)
def test_no_response_until_the_deadline_is_an_unknown_outcome(
    fault: Fault, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("*", fault, times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="unknown whether the storage") as raised:
        storage.put_if_absent(NAME, OURS, timeout_s=0.1)
    assert NAME in str(raised.value)
    proxy.reset()
    assert storage.put_if_absent(NAME, OURS) == OURS == direct.read(NAME)


def test_26_a_refusal_after_a_lost_reply_is_unknown_when_the_read_back_is_refused_too(
    proxy: FaultProxy, storage: Storage
) -> None:
    proxy.inject("PUT", LOSE_REPLY)
    proxy.inject("*", answer(403, "ExpiredToken"), times=FOREVER)
    with pytest.raises(CommitStateUnknownError, match="ExpiredToken"):
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
def test_a_refusal_fails_at_once(
    status: int, code: str, proxy: FaultProxy, storage: Storage, direct: Storage
) -> None:
    proxy.inject("PUT", answer(status, code), times=FOREVER)
    with pytest.raises(StorageError, match=code) as raised:
        storage.put_if_absent(NAME, OURS)
    assert proxy.count("PUT") == 1
    assert "a-test-secret" not in str(raised.value)
    assert direct.list("_commits") == []


def test_34_a_missing_bucket_fails_at_once(s3_url: tuple[str, dict[str, Any]]) -> None:
    storage = Storage("s3://no-such-bucket-here/a", s3_url[1])
    for call in (
        lambda: storage.put_if_absent(NAME, OURS),
        lambda: storage.put(NAME, OURS),
        lambda: storage.read(NAME),
    ):
        with pytest.raises(StorageError, match="NoSuchBucket"):
            call()

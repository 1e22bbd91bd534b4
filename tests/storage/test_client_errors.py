"""The errors of s3fs, gcsfs and adlfs map to one table, for all shapes of exceptions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, UnauthorizedSSOTokenError

from distlog.core.errors import StorageDeniedError
from distlog.core.storage.calls import ErrorKind
from distlog.core.storage.object_client import TABLES, ClientErrors, Reply, StorageOptions

JUDGE = ClientErrors(StorageOptions({"key": "a-very-secret-key"}), "s3")


class HttpResponseError(Exception):
    def __init__(self, status: int, code: str | None = None) -> None:
        super().__init__(f"words\nRequestId:{status}")
        self.message, self.status_code = self.args[0], status
        self.error_code = SimpleNamespace(value=code) if code else None


class HttpError(Exception):
    def __init__(self, status: int | str) -> None:
        super().__init__("words")
        self.code, self.message = status, "words"


def of_s3fs(status: int, code: str = "") -> Exception:
    said: Any = {"Error": {"Code": code, "Message": "words"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    translated = OSError(5, "words")
    translated.__cause__ = ClientError(said, "GetObject")
    return translated


def of_adlfs(status: int, code: str | None = None) -> Exception:
    wrapped = RuntimeError("Failed to upload block")
    wrapped.__cause__ = HttpResponseError(status, code)
    return wrapped


@pytest.mark.parametrize(
    ("status", "s3fs", "gcsfs", "adlfs"),
    [
        (400, "REFUSED", "REFUSED", "REFUSED"),
        (401, "REFUSED", "LAPSED", "LAPSED"),
        (403, "REFUSED", "REFUSED", "REFUSED"),
        (404, "MISSING", "MISSING", "MISSING"),
        (408, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
        (409, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
        (412, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
        (416, "PAST_THE_END", "PAST_THE_END", "PAST_THE_END"),
        (429, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
        (500, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
        (501, "REFUSED", "REFUSED", "REFUSED"),
        (503, "UNCLEAR", "UNCLEAR", "UNCLEAR"),
    ],
)
def test_a_status_has_one_meaning_for_all_clients(status: int, s3fs: str, gcsfs: str, adlfs: str) -> None:
    assert JUDGE.kind(of_s3fs(status)).name == s3fs
    assert JUDGE.kind(HttpError(status)).name == JUDGE.kind(HttpError(str(status))).name == gcsfs
    assert JUDGE.kind(HttpResponseError(status)).name == JUDGE.kind(of_adlfs(status)).name == adlfs
    for error in (of_s3fs(status), HttpError(status), HttpResponseError(status)):
        assert JUDGE.is_answer(error)
        assert f"(HTTP {status}): words" in JUDGE.describe(error)
        assert isinstance(JUDGE.failure("read", "a", error), StorageDeniedError) == (status in (401, 403))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (of_s3fs(404, "NoSuchBucket"), ErrorKind.REFUSED),
        (of_s3fs(403, "ExpiredToken"), ErrorKind.LAPSED),
        (of_s3fs(400, "RequestTimeout"), ErrorKind.UNCLEAR),
        (of_adlfs(404, "ContainerNotFound"), ErrorKind.REFUSED),
        (of_adlfs(404, "BlobNotFound"), ErrorKind.MISSING),
        (of_adlfs(403, "AuthenticationFailed"), ErrorKind.LAPSED),
        (of_adlfs(403, "AuthorizationFailure"), ErrorKind.REFUSED),
        (of_adlfs(409, "BlobAlreadyExists"), ErrorKind.UNCLEAR),
        (OSError("Forbidden: http://host/o\nno access"), ErrorKind.REFUSED),
        (FileExistsError("somebody was first"), ErrorKind.UNCLEAR),
        (ConnectionResetError(), ErrorKind.UNCLEAR),
    ],
)
def test_a_code_overrides_its_status(error: Exception, kind: ErrorKind) -> None:
    assert JUDGE.kind(error) is kind


class RefreshError(Exception):
    """As in google.auth; its message may hold a token."""


def of_gcsfs(status: int, words: str) -> Exception:
    error = HttpError(status)
    error.message = words
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (of_s3fs(403, "RequestTimeTooSkewed"), "this machine's clock differs too much from the store's: set it"),
        (of_s3fs(400, "ExpiredToken"), "the session token has expired: get new credentials"),
        (
            UnauthorizedSSOTokenError(),
            "the session token has expired: get new credentials, for example by aws sso login",
        ),
        (
            of_s3fs(403, "InvalidAccessKeyId"),
            "the store does not know this access key: check the key and the endpoint",
        ),
        (of_s3fs(403, "SignatureDoesNotMatch"), "the secret does not match the access key"),
        (of_s3fs(400, "AuthorizationHeaderMalformed"), "the region is not the bucket's: set AWS_DEFAULT_REGION"),
        (of_s3fs(403, "AccessDenied"), "the credentials do not allow it: check their permissions"),
        (of_gcsfs(401, "Invalid Credentials"), "the token is wrong or has expired: gcloud auth application-default"),
        (of_gcsfs(401, "Anonymous caller does not have storage.objects.get access"), "no credentials were sent"),
        (of_gcsfs(403, "no access"), "the credentials do not allow it: check their permissions"),
        (RefreshError("invalid_grant", "a-very-secret-key"), "cannot be renewed: gcloud.*this machine's clock"),
        (of_adlfs(401, "NoAuthenticationInformation"), "the token or the SAS is missing, wrong or expired"),
        (of_adlfs(403, "AuthenticationFailed"), "the SAS is wrong or expired, or this machine's clock is"),
        (of_adlfs(403, "AuthorizationPermissionMismatch"), "permissions, for example the role Storage Blob Data"),
    ],
)
def test_the_cause_of_a_refusal_is_named(error: Exception, cause: str) -> None:
    failure = str(JUDGE.failure("read", "a", error))
    assert re.search(cause, failure), failure
    assert ("permissions" in failure) == ("permissions" in cause)
    assert "a-very-secret-key" not in failure


def test_the_errors_of_the_real_clients_are_read() -> None:
    gcsfs_retry = pytest.importorskip("gcsfs.retry")
    for status, content, kind in [
        (416, "<Code>InvalidRange</Code>", "PAST_THE_END"),
        (403, json.dumps({"error": {"message": "no access"}}), "REFUSED"),
        (401, json.dumps({"error": {"message": "Invalid Credentials"}}), "LAPSED"),
        (412, "", "UNCLEAR"),
        (429, json.dumps({"error": {"message": "slow down", "code": 429}}), "UNCLEAR"),
        (404, "", "MISSING"),
    ]:
        with pytest.raises(Exception) as raised:  # noqa: PT011 - of any kind: what it means is asked
            gcsfs_retry.validate_response(status, content, "http://host/o")
        assert JUDGE.kind(raised.value).name == kind
    azure = pytest.importorskip("azure.core.exceptions")
    reply = SimpleNamespace(status_code=416, reason="Invalid", headers={}, content_type="x", body=lambda: b"")
    assert JUDGE.kind(azure.HttpResponseError(response=reply)) is ErrorKind.PAST_THE_END
    assert JUDGE.kind(azure.ServiceRequestError("no answer")) is ErrorKind.UNCLEAR
    nothing_found = azure.ClientAuthenticationError("DefaultAzureCredential failed to retrieve a token")
    assert JUDGE.kind(nothing_found) is ErrorKind.REFUSED
    assert JUDGE.kind(azure.ClientAuthenticationError(response=reply)) is ErrorKind.PAST_THE_END
    assert "no credentials were found" in JUDGE.describe(nothing_found)


def test_the_account_key_within_a_connection_string_is_masked() -> None:
    options = StorageOptions({"connection_string": "AccountName=me;AccountKey=topsecret==;BlobEndpoint=http://x"})
    assert options.masked("me, topsecret== at http://x") == "me, *** at http://x"


MEANINGS = {
    "an error at once": {ErrorKind.REFUSED, ErrorKind.LAPSED},
    "not there": {ErrorKind.MISSING},
    "tried again": {ErrorKind.UNCLEAR},
    "empty result": {ErrorKind.PAST_THE_END},
}


def test_the_documented_table_matches_the_code() -> None:
    text = (Path(__file__).parents[2] / "docs" / "s3.md").read_text(encoding="utf-8")
    head, _, *rows = text.partition("## Responses\n\n")[2].partition("\n\n")[0].splitlines()
    assert [cell.strip() for cell in head.strip("|").split("|")][1:] == [table.name for table in TABLES]
    for row in rows:
        statuses, *meanings = (cell.strip() for cell in row.strip("|").split("|"))
        for status in [int(word.replace("xx", "03")) for word in statuses.split(", ")]:
            for table, meaning in zip(TABLES, meanings, strict=True):
                (kinds,) = (kinds for words, kinds in MEANINGS.items() if meaning.startswith(words))
                assert table.kind(Reply(status, "", "")) in kinds

"""Schemas by id: from a server, from the topic of a registry, and hostile sources."""

from __future__ import annotations

import base64
import json
import pickle
import uuid
from typing import Any

import pytest
from framed_values import framed, registered, registry

import distlog
from distlog.core.schemas import registry as registries

STRING = '"string"'
POINT = {"type": "record", "name": "geo.Point", "fields": [{"name": "x", "type": "int"}]}
LINE = {"type": "record", "name": "Line", "fields": [{"name": "end", "type": "geo.Point"}]}
ANSWERS: dict[str, Any] = {
    "/schemas/ids/1": {"schema": STRING},
    "/schemas/ids/2": {
        "schema": json.dumps(LINE),
        "references": [{"name": "geo.Point", "subject": "points/all", "version": 3}],
    },
    "/subjects/points%2Fall/versions/3": {"schema": json.dumps(POINT), "id": 9, "version": 3},
    "/subjects/clicks-value/versions/latest": {"schema": STRING, "id": 1, "schemaType": "JSON"},
}


def topic_of(name: str, rows: list[dict[str, Any]]) -> distlog.Topic:
    topic = distlog.create(f"memory://{uuid.uuid4().hex}/{name}", config={"retention.ms": -1})
    topic.append(rows)
    return topic


def test_each_schema_and_reference_is_requested_once() -> None:
    with registry(ANSWERS) as server:
        client = distlog.SchemaRegistry(server.url + "/")
        for _ in range(2):
            assert client.schema(1) == registries.Schema("AVRO", STRING)
            assert client.schema(2).imports == (("geo.Point", json.dumps(POINT)),)
        assert server.requests == ["/schemas/ids/1", "/schemas/ids/2", "/subjects/points%2Fall/versions/3"]
        assert client.latest("clicks-value").kind == "JSON"
        assert pickle.loads(pickle.dumps(client)).schema(1) == client.schema(1)
        with pytest.raises(distlog.SchemaNotFoundError, match=r"the registry at http://127.*has no schema 5"):
            client.schema(5)


def test_values_are_decoded_by_a_server_s_schemas() -> None:
    pytest.importorskip("fastavro")
    topic = topic_of("lines", [{"value": framed(2, b"\x06")}, {"value": framed(5, b"\x06")}])
    with registry(ANSWERS) as server:
        table = topic.scan(columns="value").avro(registry=server.url, on_error="null")
        assert table.to_pydict() == {"end": [{"x": 3}, None]}
        with pytest.raises(distlog.InvalidRecordError, match=r"has no schema 5.*offset=1"):
            topic.scan().avro(registry=server.url)


def test_a_user_and_password_are_sent_and_never_shown() -> None:
    with registry(ANSWERS) as server:
        client = distlog.SchemaRegistry(server.url.replace("http://", "http://ann:s%40cret@"))
        client.schema(1)
        assert server.authorization == ["Basic " + base64.b64encode(b"ann:s@cret").decode()]
        assert "ann" not in repr(client)
        assert repr(client) == f"SchemaRegistry({server.url})"
        server.answers["/schemas/ids/3"] = (401, {})
        with pytest.raises(PermissionError, match="the registry refuses this user") as caught:
            client.schema(3)
        assert "cret" not in str(caught.value)


def test_a_redirect_is_not_followed_with_the_password() -> None:
    with registry(ANSWERS) as other, registry({"/schemas/ids/1": (302, {"Location": other.url})}) as server:
        client = distlog.SchemaRegistry(server.url.replace("http://", "http://ann:secret@"))
        with pytest.raises(OSError, match="the registry redirects"):
            client.schema(1)
        assert other.requests == []


@pytest.mark.parametrize(
    "answer", [b"<html>", b"[]", b'{"schema": 5}', b'{"schema": "x", "schemaType": "XML"}', b"[" * 100_000]
)
def test_an_invalid_response_is_a_registry_error(answer: bytes) -> None:
    with registry({"/schemas/ids/1": answer}) as server, pytest.raises(OSError, match="response is not a schema"):
        distlog.SchemaRegistry(server.url).schema(1)


def test_an_endless_response_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registries, "MAX_ANSWER_BYTES", 1000)
    with registry({"/schemas/ids/1": {"schema": "x" * 2000}}) as server:
        with pytest.raises(OSError, match="more than 1000 bytes"):
            distlog.SchemaRegistry(server.url).schema(1)
        monkeypatch.setattr(registries, "ANSWER_SECONDS", 0.0)
        monkeypatch.setattr(registries, "MAX_ANSWER_BYTES", 1 << 20)
        with pytest.raises(OSError, match="does not answer"):
            distlog.SchemaRegistry(server.url).schema(1)


def test_circular_references_end() -> None:
    circle = {"schema": STRING, "references": [{"name": "a", "subject": "a", "version": 1}]}
    many = {
        f"/subjects/s{n}/versions/1": {
            "schema": STRING,
            "references": [{"name": f"n{n + 1}", "subject": f"s{n + 1}", "version": 1}],
        }
        for n in range(400)
    }
    first = {"schema": STRING, "references": [{"name": "n0", "subject": "s0", "version": 1}]}
    with registry(
        {"/schemas/ids/1": circle, "/subjects/a/versions/1": circle, "/schemas/ids/2": first, **many}
    ) as server:
        client = distlog.SchemaRegistry(server.url)
        assert client.schema(1).imports == (("a", STRING),)
        with pytest.raises(OSError, match="refers to more than 250 schemas"):
            client.schema(2)


def test_an_unreachable_registry_is_a_storage_error() -> None:
    with registry({}) as server:
        url = server.url
    topic = topic_of("values", [{"value": framed(1, b"")}])
    with pytest.raises(OSError, match="the schema registry does not answer"):
        topic.scan().avro("string", registry=url, on_error="null")


@pytest.mark.parametrize("source", ["ftp://host", "http://", "/data/_schemas", "http://host:x", "http://h/?a=b", 5])
def test_an_invalid_registry_is_refused(source: Any) -> None:
    with pytest.raises(distlog.InvalidConfigError, match="regist"):
        distlog.SchemaRegistry(source)


def schemas(*rows: dict[str, Any]) -> distlog.Topic:
    return topic_of("_schemas", list(rows))


def test_the_topic_of_schemas_serves_old_logs_without_a_registry() -> None:
    pytest.importorskip("fastavro")
    reference = {"name": "geo.Point", "subject": "points", "version": 1}
    schemas_topic = schemas(
        {"key": '{"keytype":"NOOP","magic":0}', "value": None},
        {"key": '{"keytype":"CONFIG","subject":null,"magic":0}', "value": '{"compatibilityLevel":"NONE"}'},
        registered("points", 1, 1, POINT),
        registered("lines-value", 1, 2, LINE, references=[reference], schemaType="AVRO"),
    )
    lines = topic_of("lines", [{"value": framed(2, b"\x06")}, {"value": framed(3, b"\x06")}])
    scan = lines.scan(columns="value")
    assert scan.avro(registry=schemas_topic, on_error="null").to_pydict() == {"end": [{"x": 3}, None]}
    client = distlog.SchemaRegistry(schemas_topic)
    with pytest.raises(distlog.SchemaNotFoundError, match=rf"the topic {schemas_topic.url} has no schema 3"):
        client.schema(3)
    distlog.open(schemas_topic.url).append([registered("lines-value", 2, 3, POINT)])
    assert client.schema(3).text == json.dumps(POINT)
    assert client.latest("lines-value").text == json.dumps(POINT)
    assert repr(client) == f"SchemaRegistry({schemas_topic.url})"


def test_a_deleted_schema_is_found_by_its_id_and_is_no_longer_the_newest() -> None:
    schemas_topic = schemas(
        registered("s", 1, 1, "one"),
        registered("s", 2, 2, "two"),
        registered("s", 2, 2, "two", deleted=True),
        registered("t", 1, 3, "three"),
        {**registered("t", 1, 3, "three"), "value": None},
    )
    client = distlog.SchemaRegistry(schemas_topic)
    assert [client.schema(number).text for number in (1, 2, 3)] == ["one", "two", "three"]
    assert client.latest("s").text == "one"
    with pytest.raises(distlog.SchemaNotFoundError, match="no subject t"):
        client.latest("t")


def test_an_id_means_one_schema_in_each_context() -> None:
    schemas_topic = schemas(
        registered("clicks-value", 1, 7, "clicks"),
        registered(":.staging:orders-value", 1, 7, "orders"),
        registered(":.staging:orders-value", 2, 8, "more orders"),
        registered(":.:views-value", 1, 9, "views"),
    )
    client, staging = distlog.SchemaRegistry(schemas_topic), distlog.SchemaRegistry(schemas_topic, ".staging")
    assert (client.schema(7).text, staging.schema(7).text) == ("clicks", "orders")
    assert client.latest("views-value").text == "views"
    assert staging.latest("orders-value") == client.latest(":.staging:orders-value")
    assert staging.latest("orders-value").text == "more orders"
    missing = r"has no schema 8; other contexts have it, pass one as context= \(contexts=\.staging\)"
    with pytest.raises(distlog.SchemaNotFoundError, match=missing):
        client.schema(8)
    with pytest.raises(distlog.SchemaNotFoundError, match=r"no subject clicks-value in the context \.staging"):
        staging.latest("clicks-value")


def test_references_are_looked_up_in_the_context_of_the_schema() -> None:
    reference = {"name": "geo.Point", "subject": "points", "version": 1}
    schemas_topic = schemas(
        registered("points", 1, 1, "another point"),
        registered(":.staging:points", 1, 1, POINT),
        registered(":.staging:lines", 1, 2, LINE, references=[reference]),
    )
    expected = (("geo.Point", json.dumps(POINT)),)
    assert distlog.SchemaRegistry(schemas_topic, ".staging").schema(2).imports == expected


def test_schemas_of_a_context_are_requested() -> None:
    with registry({"/contexts/.staging/schemas/ids/1": {"schema": STRING}}) as server:
        assert distlog.SchemaRegistry(server.url, ".staging").schema(1).text == STRING


@pytest.mark.parametrize(("source", "context"), [({1: "int"}, ".staging"), ("http://host", "staging")])
def test_an_invalid_context_is_refused(source: Any, context: str) -> None:
    with pytest.raises(distlog.InvalidConfigError, match="context"):
        distlog.SchemaRegistry(source, context)


def test_the_first_schema_of_an_id_applies() -> None:
    schemas_topic = schemas(
        registered("s", 1, 5, "first"),
        registered("t", 1, 5, "second"),
        # a version that is written again, as by a deletion
        registered("s", 1, 5, "first, again"),
    )
    client = distlog.SchemaRegistry(schemas_topic)
    assert (client.schema(5).text, client.latest("t").text) == ("first, again", "second")


@pytest.mark.parametrize(
    ("kind", "value"), [("DELETE_SUBJECT", '{"subject":"s","version":2}'), ("CLEAR_SUBJECT", '{"subject":"s"}')]
)
def test_a_deleted_subject_has_no_newest_schema_until_it_is_registered_again(kind: str, value: str) -> None:
    deletion = {"key": json.dumps({"keytype": kind, "subject": "s", "magic": 0}), "value": value}
    schemas_topic = schemas(
        registered("s", 1, 1, "one"), registered("s", 2, 2, "two"), registered("t", 1, 3, "other"), deletion
    )
    client = distlog.SchemaRegistry(schemas_topic)
    with pytest.raises(distlog.SchemaNotFoundError, match="no subject s"):
        client.latest("s")
    assert [client.schema(number).text for number in (1, 2)] == ["one", "two"]
    assert client.latest("t").text == "other"
    distlog.open(schemas_topic.url).append([registered("s", 3, 4, "three")])
    assert client.latest("s").text == "three"


def test_other_records_are_ignored() -> None:
    bad = [
        {"key": None, "value": None},
        {"key": "[]", "value": "{}"},
        {"key": "{", "value": "nope"},
        {"key": '{"keytype":"SCHEMA","subject":"s","version":"1"}', "value": "{}"},
        {"key": '{"keytype":"SCHEMA","subject":"s","version":1}', "value": '{"id":1,"schema":5}'},
        registered("s", 2, 2, "two"),
    ]
    client = distlog.SchemaRegistry(schemas(*bad))
    assert client.latest("s").text == "two"
    with pytest.raises(distlog.SchemaNotFoundError):
        client.schema(1)

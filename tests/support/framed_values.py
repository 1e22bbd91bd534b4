"""Values as producers with a registry write them, by fastavro and protobuf, and a registry to ask."""

from __future__ import annotations

import io
import json
import struct
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


def framed(schema_id: int, payload: bytes) -> bytes:
    """A payload after the header with its schema's id."""
    return struct.pack(">bI", 0, schema_id) + payload


def avro(schema: Any, value: Any) -> bytes:
    import fastavro

    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


@dataclass
class Registry:
    """A registry's answers by path, what was asked, and its address."""

    answers: dict[str, Any]
    url: str = ""
    requests: list[str] = field(default_factory=list)
    authorization: list[str | None] = field(default_factory=list)


@contextmanager
def registry(answers: Mapping[str, Any]) -> Iterator[Registry]:
    """A server with these answers: JSON, raw bytes, or (status, headers)."""
    new_registry = Registry(dict(answers))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            new_registry.requests.append(self.path)
            new_registry.authorization.append(self.headers.get("Authorization"))
            answer = new_registry.answers.get(self.path, (404, {}))
            status, headers = answer if isinstance(answer, tuple) else (200, {})
            body = answer if isinstance(answer, bytes) else b"" if isinstance(answer, tuple) else _json(answer)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    new_registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield new_registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _json(answer: Any) -> bytes:
    return json.dumps(answer).encode()


def registered(subject: str, version: int, schema_id: int, schema: Any, **more: Any) -> dict[str, Any]:
    """A record of the topic where a registry keeps its schemas."""
    key = {"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1}
    text = schema if isinstance(schema, str) else json.dumps(schema)
    value = {"subject": subject, "version": version, "id": schema_id, "schema": text, "deleted": False, **more}
    return {"key": json.dumps(key), "value": json.dumps(value)}

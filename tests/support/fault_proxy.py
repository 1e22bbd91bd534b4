"""An HTTP proxy between a client and a server that counts requests, and loses, delays and falsifies them on demand.

    with FaultProxy(server.endpoint) as proxy:
        storage = Storage(url, {**options, "endpoint_url": proxy.url})
        proxy.inject("PUT", LOSE_REPLY)                      # the next PUT is stored, and its reply is lost
        proxy.inject("GET", answer(503, "SlowDown"), times=3)  # the next three GETs never reach the server
        proxy.inject("PUT", CUT, path="*/00*7.json", times=FOREVER)
        ...
        assert proxy.count("PUT") == 2                       # requests that the client sent, all paths
        assert proxy.requests[-1].status == 200              # each with method, path, status, sizes and fault

The first rule injected that matches method and path, and has not been used up, is applied; others pass.
`reset()` forgets rules and requests; `most_at_once` says how many requests overlapped. Connections are closed
after one request, or kept with `keep_alive=True`. HTTP clients send a lost GET or PUT once more on their own.
"""

from __future__ import annotations

import fnmatch
import http.client
import socket
import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

FOREVER = 10**9
_HOP_BY_HOP = {"connection", "keep-alive", "expect", "transfer-encoding", "proxy-connection", "te", "trailer"}


@dataclass(frozen=True)
class Fault:
    """The fate of a request: its delay, whether the server gets it, and the response to the client."""

    delay_s: float = 0.0
    overlap: int = 0
    forward: bool = True
    cut: bool = False
    keep_reply_bytes: int | None = None
    status: int | None = None
    code: str = ""


LOSE_REPLY = Fault(cut=True)
"""The server acts on it; the connection is closed before the reply."""
CUT = Fault(forward=False, cut=True)
"""The connection is reset; the server never sees the request."""


def answer(status: int, code: str) -> Fault:
    """Reply with an S3 error; the server never sees the request."""
    return Fault(forward=False, status=status, code=code)


def act_but_answer(status: int, code: str) -> Fault:
    """The server handles the request, and the client gets an error."""
    return Fault(status=status, code=code)


def delay(seconds: float) -> Fault:
    """Pass, after a while."""
    return Fault(delay_s=seconds)


def overlap(requests: int) -> Fault:
    """Pass when this number of requests are here at the same time, or after a minute."""
    return Fault(overlap=requests)


def truncate_reply(keep_bytes: int) -> Fault:
    """Send only the beginning of the body, then close the connection."""
    return Fault(keep_reply_bytes=keep_bytes)


@dataclass(frozen=True)
class Request:
    """One request that reached the proxy; `status` is the client's, 0 without a response."""

    method: str
    path: str
    query: str
    sent_bytes: int
    status: int = 0
    reply_bytes: int = 0
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass
class _Rule:
    method: str
    path: str
    query: str
    fault: Fault
    skip: int
    times: int

    def matches(self, method: str, path: str, query: str) -> bool:
        is_meant = fnmatch.fnmatch(path, self.path) and fnmatch.fnmatch(query, self.query)
        if self.method not in ("*", method) or not is_meant or self.times == 0:
            return False
        if self.skip:
            self.skip -= 1
            return False
        self.times -= 1
        return True


class FaultProxy:
    """See the module's head; a context manager that serves on a port of its own, at `url`."""

    def __init__(self, upstream: str, *, keep_alive: bool = False) -> None:
        self.upstream = urlsplit(upstream)
        self.keep_alive = keep_alive
        self._rules: list[_Rule] = []
        self._requests: list[Request] = []
        self._lock = threading.Condition()
        self._running = 0
        self.most_at_once = 0
        self._server = _Server(("127.0.0.1", 0), _handler_of(self))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def inject(
        self, method: str, fault: Fault, *, path: str = "*", query: str = "*", skip: int = 0, times: int = 1
    ) -> None:
        """Apply `fault` to `times` requests of `method` ("*": any), after `skip` requests.

        Only requests that match the patterns count; a LIST has its prefix in the `query`.
        """
        with self._lock:
            self._rules.append(_Rule(method, path, query, fault, skip, times))

    def reset(self) -> None:
        with self._lock:
            self._rules, self._requests, self.most_at_once = [], [], 0

    @property
    def requests(self) -> list[Request]:
        with self._lock:
            return list(self._requests)

    def count(self, method: str, path: str = "*") -> int:
        """The number of requests of `method` for `path` (a shell pattern)."""
        return sum(request.method == method and fnmatch.fnmatch(request.path, path) for request in self.requests)

    def fault_for(self, method: str, path: str, query: str) -> Fault | None:
        """The fault to apply to a request now, which uses it up."""
        with self._lock:
            return next((rule.fault for rule in self._rules if rule.matches(method, path, query)), None)

    def running(self, change: int) -> None:
        """Note that a request came (1) or went (-1); `most_at_once` is the largest number that overlapped."""
        with self._lock:
            self._running += change
            self.most_at_once = max(self.most_at_once, self._running)
            self._lock.notify_all()

    def wait_for_overlap(self, requests: int) -> None:
        with self._lock:
            self._lock.wait_for(lambda: self.most_at_once >= requests, timeout=60)

    def log(self) -> list[Request]:
        """Where a request that arrives now is noted; `reset` leaves it to the stragglers."""
        with self._lock:
            return self._requests

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


def _handler_of(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(_Handler):
        pass

    Handler.proxy = proxy
    return Handler


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    proxy: FaultProxy

    def _handle(self) -> None:
        self.proxy.running(1)
        try:
            self._treat()
        finally:
            self.proxy.running(-1)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle  # noqa: N815 - names that http.server calls

    def _treat(self) -> None:
        body = self._read_body()
        if body is None:
            # a store keeps nothing of a request whose client dies within it
            self.close_connection = True
            return
        log = self.proxy.log()
        target = urlsplit(self.path)
        fault = self.proxy.fault_for(self.command, target.path, target.query)
        headers = dict(self.headers.items())
        request = Request(self.command, target.path, target.query, len(body), fault=fault, headers=headers)
        applied = fault or Fault()
        self.close_connection = applied.cut or applied.keep_reply_bytes is not None or not self.proxy.keep_alive
        time.sleep(applied.delay_s)
        self.proxy.wait_for_overlap(applied.overlap)
        status, headers, reply = self._forward(body) if applied.forward else (0, [], b"")
        if applied.cut:
            log.append(request)
            self._hang_up(reset=not applied.forward)
            return
        if applied.status is not None:
            status, headers, reply = applied.status, [("Content-Type", "application/xml")], _error_body(applied)
        # Before the client can act on the reply: a test may look as soon as it has it.
        log.append(replace(request, status=status, reply_bytes=len(reply)))
        self._reply(status, headers, reply, applied.keep_reply_bytes)

    def _read_body(self) -> bytes | None:
        """Return the body, or None if the client closed the connection within it."""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            chunks = list(iter(self._read_chunk, b""))
            return None if None in chunks else b"".join(chunks)  # type: ignore[arg-type]
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size)
        return body if len(body) == size else None

    def _read_chunk(self) -> bytes | None:
        line = self.rfile.readline()
        if not line:
            return None
        data = self.rfile.read(size := int(line.split(b";")[0], 16))
        return data if len(data) == size and self.rfile.readline() else None

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        # The Host header is signed, so it stays the proxy's.
        server = http.client.HTTPConnection(self.proxy.upstream.hostname or "", self.proxy.upstream.port, timeout=60)
        server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                server.putheader(name, value)
        if body or "Content-Length" in self.headers:
            server.putheader("Content-Length", str(len(body)))
        server.endheaders(body)
        reply = server.getresponse()
        data = reply.read()
        server.close()
        return reply.status, reply.getheaders(), data

    def _reply(self, status: int, headers: list[tuple[str, str]], body: bytes, keep_bytes: int | None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in _HOP_BY_HOP and (self.command == "HEAD" or name.lower() != "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[:keep_bytes])

    def _hang_up(self, *, reset: bool) -> None:
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


def _error_body(fault: Fault) -> bytes:
    text = f"<Error><Code>{fault.code}</Code><Message>injected {fault.code}</Message><RequestId>0</RequestId></Error>"
    return b'<?xml version="1.0" encoding="UTF-8"?>\n' + text.encode()

"""Moto's S3 server in threads of this process: with less CPU for a request, and one winner of each race."""

from __future__ import annotations

import functools
import io
import threading
from typing import Any


def started() -> Any:
    """A `ThreadedMotoServer` on a free port, which its `stop` ends; the servers of a process share their buckets."""
    from moto.server import ThreadedMotoServer

    _patch()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return server


@functools.cache
def _patch() -> None:
    from botocore import session
    from moto.moto_server import threaded_moto_server
    from moto.s3.responses import S3Response
    from moto.server import DomainDispatcherApplication

    # it looks for an object and puts it in two steps, so that now and then two writers would win
    put, lock = S3Response.put_object, threading.Lock()

    def put_object(self: Any) -> Any:
        with lock:
            return put(self)

    S3Response.put_object = put_object
    # each session of a client would read S3's description again, and keep 28,000 objects
    session.create_loader = functools.cache(session.create_loader)
    # twice for each request it would list its own folder on the disk, and match the patterns of all services
    real_backend = DomainDispatcherApplication.get_backend_for_host
    DomainDispatcherApplication.get_backend_for_host = functools.cache(real_backend)
    threaded_moto_server.MotoRequestHandler = _keeping_connections(threaded_moto_server.MotoRequestHandler)


def _keeping_connections(handler: Any) -> Any:
    """A handler that keeps connections, as S3 does, and answers by one write.

    Werkzeug's closes each: a third of the CPU of a request, with the client's, went into the next one.
    """
    from werkzeug.test import run_wsgi_app

    class Keeping(handler):  # type: ignore[misc]
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def run_wsgi(self) -> None:
            # an answer to `Expect: 100-continue`
            self.wfile.flush()
            self.environ = environ = self.make_environ()
            sent, is_chunked = environ["wsgi.input"], "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "")
            # to its end, or the remaining bytes would count as the next request
            length = int(environ.get("CONTENT_LENGTH") or 0)
            data = sent.read() if is_chunked else sent.read(length)
            if not is_chunked and len(data) < length:
                # the request of a killed process is not stored
                self.close_connection = True
                return
            answer, status, headers = run_wsgi_app(
                self.server.app, {**environ, "wsgi.input": io.BytesIO(data)}, buffered=True
            )
            code, _, reason = status.partition(" ")
            self.send_response(int(code), reason)
            for name, value in headers:
                self.send_header(name, value)
            body = b"".join(answer)
            if "Content-Length" not in headers and code not in ("204", "304"):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.wfile.flush()

        def log_request(self, *_: object) -> None:
            """Nothing: pytest would keep a line for each request."""

    return Keeping

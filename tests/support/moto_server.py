"""Moto's S3 server in threads of this process: with less CPU for a request, and one winner of each race."""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any


def started() -> Any:
    """A `ThreadedMotoServer` on a free port, which its `stop` ends; those of a process share their buckets."""
    from moto.server import ThreadedMotoServer

    # a line for each request, which pytest would keep
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _patch()
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    return server


@functools.cache
def _patch() -> None:
    from moto.s3.responses import S3Response
    from moto.server import DomainDispatcherApplication

    # it looks for an object and puts it in two steps, so that now and then two writers would win
    put, lock = S3Response.put_object, threading.Lock()

    def put_object(self: Any) -> Any:
        with lock:
            return put(self)

    S3Response.put_object = put_object
    # twice for each request it would list its own folder on the disk, and match the patterns of all services
    found = DomainDispatcherApplication.get_backend_for_host
    DomainDispatcherApplication.get_backend_for_host = functools.cache(found)

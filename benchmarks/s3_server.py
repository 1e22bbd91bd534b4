"""moto's S3 server for benchmarks, which counts requests."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import IO, Any

BUCKET = "bench"


class S3Server:
    """A server with an empty bucket, in this process, while it is entered."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._count, threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        # moto looks for an object and puts it in two steps, so that now and then two writers would win a race
        self._puts = threading.Lock()
        #: How long each request takes besides the work for it.
        self.delay_s = 0.0
        #: Requests so far, by their methods.
        self.by_method = Counter[str]()

    def _count(self, environment: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        self.by_method[environment["REQUEST_METHOD"]] += 1
        time.sleep(self.delay_s)
        with self._puts if environment["REQUEST_METHOD"] == "PUT" else nullcontext():
            return self._application(environment, answer)  # type: ignore[no-any-return]

    @property
    def requests(self) -> int:
        """Requests so far."""
        return self.by_method.total()

    @property
    def url(self) -> str:
        """The bucket."""
        return f"s3://{BUCKET}"

    @property
    def options(self) -> dict[str, Any]:
        """The storage options that reach the server."""
        return {"endpoint_url": f"http://127.0.0.1:{self._server.port}", "key": "key", "secret": "secret"}

    def __enter__(self) -> S3Server:
        import boto3

        self._thread.start()
        options = self.options
        boto3.client(
            "s3",
            endpoint_url=options["endpoint_url"],
            aws_access_key_id=options["key"],
            aws_secret_access_key=options["secret"],
            region_name="us-east-1",
        ).create_bucket(Bucket=BUCKET)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._thread.join()


@dataclass(frozen=True)
class ServerProcess:
    """A server in a process of its own, which a client in Python does not slow down."""

    url: str
    options: dict[str, Any]
    _commands: IO[str]

    def delay(self, seconds: float) -> None:
        """Let each request from now on take this long besides the work for it."""
        print(seconds, file=self._commands, flush=True)


@contextmanager
def server_process() -> Iterator[ServerProcess]:
    """A server in a process that ends with the block."""
    command = [sys.executable, "-m", "benchmarks.s3_server"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield ServerProcess(f"s3://{BUCKET}", json.loads(process.stdout.readline()), process.stdin)
    finally:
        process.stdin.close()
        process.wait()


if __name__ == "__main__":
    with S3Server() as server:
        print(json.dumps(server.options), flush=True)
        for line in sys.stdin:
            server.delay_s = float(line)

"""Servers of Google's and Azure's storage for tests: fake-gcs-server and Azurite.

`make store-servers` gets them, and sets DISTLOG_STORE_SERVERS to their folder; else they are looked for in PATH.
Tests install nothing: where a server or its client is missing, they are skipped.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from distlog.core.storage.object_client import ClientSource, StorageOptions

#: The account of every Azurite, as its documents have it: no secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


class Store(NamedTuple):
    """A running server with the bucket `distlog-test`: the protocol, and the options of its client."""

    protocol: str
    port: int

    def options(self, port: int | None = None, key: str = KEY) -> dict[str, Any]:
        address = f"http://127.0.0.1:{port or self.port}"
        if self.protocol == "gs":
            return {"endpoint_url": address, "token": "anon", "project": "test"}
        connection = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key}"
        return {"connection_string": f"{connection};BlobEndpoint={address}/{ACCOUNT};"}

    def url(self, folder: str, bucket: str = "distlog-test") -> str:
        return f"{self.protocol}://{bucket}/{folder}"


@contextmanager
def running(protocol: str, folder: Path) -> Iterator[Store]:
    """A server of `protocol` ("gs" or "az"), with its files in `folder`; skips the test where there is none."""
    pytest.importorskip("gcsfs" if protocol == "gs" else "adlfs")
    port = free_port()
    if protocol == "gs":
        command = [_program("bin/fake-gcs-server"), "-scheme=http", "-host=127.0.0.1", f"-port={port}"]
        command += ["-backend=memory", f"-public-host=127.0.0.1:{port}"]
    else:
        command = [_program("node_modules/.bin/azurite-blob"), "--silent", "--skipApiVersionCheck"]
        command += [f"--location={folder}", f"--blobPort={port}"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await(process, port)
        store = Store(protocol, port)
        ClientSource(protocol, StorageOptions(store.options())).get().mkdir("distlog-test")
        yield store
    finally:
        process.terminate()
        process.wait(30)


def free_port() -> int:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _program(name: str) -> str:
    folder = os.environ.get("DISTLOG_STORE_SERVERS")
    command = shutil.which(f"{folder}/{name}") if folder else shutil.which(name.rpartition("/")[2])
    if command is None:
        pytest.skip(f"no {name.rpartition('/')[2]} here: make store-servers gets it")
    return command


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    for _ in range(600):
        assert process.poll() is None, "the server ended"
        with closing(socket.socket()) as listener:
            if listener.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the server does not listen")

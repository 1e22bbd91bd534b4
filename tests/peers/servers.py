"""The servers that clients are tried with: gateways over a local root or a bucket, and a broker of Kafka."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import kafka_broker
from store_servers import free_port

from benchmarks.kafka_peer import wait_for
from benchmarks.s3_server import S3Server

# Without it, each first member of a group waits three seconds.
_SETTINGS = ("group.initial.rebalance.delay.ms=0",)
_ACLS = ("--acls", "--config", "super.users=User:ANONYMOUS")
_BROKER = """
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
auto.create.topics.enable=false
group.share.enable=true
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class Servers(NamedTuple):
    """Where clients find a server, and one with ACLs whose anonymous user may do everything."""

    address: str
    secured: str


#: A server's name, and what begins it in a folder.
Begin = Callable[[Path], AbstractContextManager[Servers]]


@contextmanager
def on_disk(folder: Path) -> Iterator[Servers]:
    """Two gateways over two roots on this machine's disk."""
    with _gateway(str(folder / "root"), folder) as address, _gateway(str(folder / "secured"), folder, *_ACLS) as acls:
        yield Servers(address, acls)


@contextmanager
def on_moto(folder: Path) -> Iterator[Servers]:
    with S3Server() as server, _over(server.url, server.options, folder) as servers:
        yield servers


@contextmanager
def on_versitygw(folder: Path) -> Iterator[Servers]:
    """Two gateways over a bucket of versitygw, which keeps objects as files."""
    port, keys = free_port(), {"key": "key", "secret": "secret-secret"}
    (folder / "files" / "bench").mkdir(parents=True)
    command = ["versitygw", "--access", keys["key"], "--secret", keys["secret"], "--port", f"127.0.0.1:{port}"]
    with _process([*command, "posix", str(folder / "files")], folder / "versitygw.log"):
        wait_for(port)
        options = {"endpoint_url": f"http://127.0.0.1:{port}", **keys}
        with _over("s3://bench", options, folder) as servers:
            yield servers


@contextmanager
def kafka(folder: Path) -> Iterator[Servers]:
    with kafka_broker.Broker(folder, _BROKER).running() as broker:
        yield Servers(broker.address, broker.address)


def has_versitygw() -> bool:
    """Whether that server is installed."""
    return shutil.which("versitygw") is not None


@contextmanager
def _over(bucket: str, options: Mapping[str, Any], folder: Path) -> Iterator[Servers]:
    storage = [part for name, value in options.items() for part in ("--storage", f"{name}={value}")]
    storage += ["--linger-ms", "20"]
    with (
        _gateway(f"{bucket}/root", folder, *storage) as address,
        _gateway(f"{bucket}/secured", folder, *storage, *_ACLS) as secured,
    ):
        yield Servers(address, secured)


@contextmanager
def _gateway(root: str, folder: Path, *options: str) -> Iterator[str]:
    command = [sys.executable, "-m", "distlog", "serve", "--root", root, "--listen", "127.0.0.1:0", "--json"]
    settings = [part for setting in _SETTINGS for part in ("--config", setting)]
    log = folder / f"gateway-{root.rpartition('/')[2]}.log"
    with _process([*command, *settings, *options], log, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a gateway did not begin: {log.read_text(encoding='utf-8')[-2000:]}")
        yield json.loads(line)["listen"]


@contextmanager
def _process(command: list[str], log: Path, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    with ExitStack() as stack:
        output = stack.enter_context(log.open("a", encoding="utf-8"))
        process = subprocess.Popen(command, stdout=stdout or output, stderr=output, text=True)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)

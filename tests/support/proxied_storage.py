"""A storage whose requests go wrong between its client and an S3 server, and the same storage without faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from fault_proxy import (
    FaultProxy,
)

from distlog.core.storage import calls
from distlog.core.storage.storage import Storage

NAME = "_commits/00000000000000000007.json"
OURS, THEIRS = b'{"id": "ours"}', b'{"id": "theirs"}'
MIB = 1024 * 1024
#: How long a reply may take, and after which a server answers that is later; in seconds.
IMPATIENT_S, LATE_S = 0.4, 0.7


@pytest.fixture(scope="module", params=[False, True], ids=["new connections", "kept connections"])
def running_proxy(request: pytest.FixtureRequest, s3_server: Any) -> Iterator[FaultProxy]:
    with FaultProxy(s3_server.endpoint, keep_alive=request.param) as running:
        yield running


@pytest.fixture
def proxy(running_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> FaultProxy:
    """A proxy without faults as yet; pauses before a retry are short, since no server is to be spared."""
    monkeypatch.setattr(calls, "FIRST_PAUSE_S", 0.002)
    running_proxy.reset()
    return running_proxy


@pytest.fixture
def direct(s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage as everybody else sees it, without faults."""
    return Storage(*s3_url)


@pytest.fixture
def storage(proxy: FaultProxy, s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage through the proxy, on a connection that is already in use."""
    return through(proxy, s3_url)


@pytest.fixture
def impatient(proxy: FaultProxy, s3_url: tuple[str, dict[str, Any]]) -> Storage:
    """The storage through the proxy, with a client that waits IMPATIENT_S for a reply."""
    return through(proxy, s3_url, config_kwargs={"read_timeout": IMPATIENT_S})


def through(proxy: FaultProxy, address: tuple[str, dict[str, Any]], **more: Any) -> Storage:
    url, options = address
    proxied = Storage(url, {**options, **more, "endpoint_url": proxy.url})
    # so that it does not come between what a test counts
    proxied.probe_put_if_absent("_commits")
    proxy.reset()
    return proxied

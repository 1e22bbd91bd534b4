"""The streams of the campaign `streams` on an S3 server that also loses responses and refuses requests."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import moto_server
from fault_proxy import CUT, LOSE_REPLY, FaultProxy, answer

from soak.streams import Pipeline, killed
from soak.tally import Tally

FAULTS = (("PUT", LOSE_REPLY), ("PUT", answer(503, "SlowDown")), ("GET", answer(500, "InternalError")), ("GET", CUT))
_KEYS = {"key": "a-test-key", "secret": "a-test-secret"}


def run(folder: Path, seed: int, kills: int, address: tuple[str, Mapping[str, Any]] | None = None) -> Tally:
    """Run a campaign; `address` is an empty folder of a server, by default of moto's."""
    if address is None:
        with server() as address:
            return run(folder, seed, kills, address)
    root, options = address
    with FaultProxy(str(options["endpoint_url"])) as proxy:
        pipeline = Pipeline(folder, root, {**options, "endpoint_url": proxy.url}, seed, pause_s=1.0)
        tally = killed(pipeline, kills, partial(disturb, proxy, random.Random(seed)))
        tally["requests"] += len(proxy.requests)
        tally["faults"] += sum(request.fault is not None for request in proxy.requests)
        return tally


def disturb(proxy: FaultProxy, chance: random.Random) -> None:
    """Inject faults of two kinds into the next requests."""
    for method, fault in chance.sample(FAULTS, 2):
        proxy.inject(method, fault, times=chance.randint(1, 3))


@contextmanager
def server() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Start moto's S3 server; yields an empty folder, and the options of its storage."""
    import boto3

    server = moto_server.started()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        keys = {"aws_access_key_id": _KEYS["key"], "aws_secret_access_key": _KEYS["secret"]}
        boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1", **keys).create_bucket(Bucket="streams")
        # the buckets of a process outlive its servers
        yield f"s3://streams/{uuid.uuid4().hex}", {"endpoint_url": endpoint, **_KEYS}
    finally:
        server.stop()

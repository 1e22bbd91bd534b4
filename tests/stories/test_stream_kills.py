"""A stream copies a topic while its processes are killed: the copy is exact. `make soak` runs many kills."""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address
from soak import streams, streams_on_s3
from spark_python import forked_python

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forked, since each query starts a dozen; only processes of Spark are killed."""
    for name, program in forked_python().items():
        monkeypatch.setenv(name, program)


def test_a_copy_by_stream_is_exact_while_its_processes_are_killed(tmp_path: Path) -> None:
    counted = streams.run(tmp_path, seed=5, kills=1)
    assert counted["records"]
    assert counted["drivers restarted"]


@pytest.mark.s3
def test_a_copy_on_an_object_store_outlives_its_faults(tmp_path: Path, s3_url: Address) -> None:
    counted = streams_on_s3.run(tmp_path, seed=6, kills=1, address=s3_url)
    assert counted["records"]
    assert counted["faults"]
    assert counted["kills of a source"]
    assert counted["queries restarted"]

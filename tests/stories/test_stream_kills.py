"""A stream from topic to topic, whose processes are killed; `make soak` does it hundreds of times.

1. A query copies every record to the same partition of another topic, while a writer appends to the first one.
2. The driver, the processes of the source and of the sink, and tasks are killed at random moments; the query, or
   the driver, is begun anew from its checkpoint.
3. In the end each partition of the copy has the same records as its original, in the same order.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from addresses import Address
from soak import streams, streams_on_s3
from spark_python import forked_python

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drivers' workers are forked, of which each query starts a dozen; what is killed is what Spark started."""
    for name, program in forked_python().items():
        monkeypatch.setenv(name, program)


def test_a_copy_by_stream_is_exact_while_its_processes_are_killed(tmp_path: Path) -> None:
    # the driver in batch 0; the process of the source is killed below
    counted = streams.run(tmp_path, seed=5, kills=1)
    assert counted["records"]
    assert counted["drivers begun anew"]


@pytest.mark.s3
def test_such_a_copy_on_an_object_store_outlives_its_faults_too(tmp_path: Path, s3_url: Address) -> None:
    counted = streams_on_s3.run(tmp_path, seed=6, kills=1, address=s3_url)
    assert counted["records"]
    assert counted["faults"]
    assert counted["kills of a source"]
    assert counted["queries begun anew"]

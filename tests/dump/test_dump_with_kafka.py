"""Each file of real brokers, dumped by Kafka's tool and by ours with all options: the same lines."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from dumps import dumped
from kafka_broker import PATIENCE_SECONDS, java, needs_kafka
from log_dirs import STAGES

pytestmark = needs_kafka

SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
FILES = sorted(file for stage in STAGES.values() for file in stage.glob("*/*") if file.suffix in SUFFIXES)
#: The options of Kafka's tool, and ours.
OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--deep-iteration",): {"deep_iteration": True},
    ("--print-data-log",): {"print_data_log": True},
    ("--index-sanity-check",): {"index_sanity_check": True},
    ("--verify-index-only",): {"verify_index_only": True},
}


def of_kafka(files: list[Path], *options: str) -> tuple[bytes, str]:
    """Return the output and the errors of Kafka's tool."""
    command = java("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))
    run = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout, run.stderr.decode()


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_a_dump_equals_the_dump_of_kafkas_tool(options: tuple[str, ...]) -> None:
    # Kafka's tool ends at an index that fails the sanity check, as a killed broker leaves them
    files = [file for file in FILES if "--index-sanity-check" not in options or "crashed" not in file.parts]
    assert len(files) > 400
    out, err = of_kafka(files, *options)
    dump = dumped(*files, **OPTIONS[options])
    assert dump.out.splitlines() == out.splitlines()
    # Kafka's tool reports errors in the order of a hash map
    assert sorted(dump.err.splitlines()) == sorted(line for line in err.splitlines() if not line.startswith("SLF4J"))
    assert dump.failures == 0

"""Every file that real brokers left, dumped by Kafka's own tool and here: the same lines, whatever the options."""

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
#: The tool's options, and the same here.
OPTIONS: dict[tuple[str, ...], dict[str, Any]] = {
    ("--deep-iteration",): {"deep_iteration": True},
    ("--print-data-log",): {"print_data_log": True},
    ("--index-sanity-check",): {"index_sanity_check": True},
    ("--verify-index-only",): {"verify_index_only": True},
}


def of_kafka(files: list[Path], *options: str) -> tuple[bytes, str]:
    """What Kafka's tool prints, and what it says is wrong."""
    command = java("kafka.tools.DumpLogSegments", *options, "--files", ",".join(map(str, files)))
    run = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, run.stderr.decode()
    return run.stdout, run.stderr.decode()


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
def test_a_dump_is_that_of_kafkas_tool(options: tuple[str, ...]) -> None:
    # at an index that is not sane, as a broker that was killed leaves them, Kafka's tool ends
    files = [file for file in FILES if "--index-sanity-check" not in options or "crashed" not in file.parts]
    assert len(files) > 400
    out, err = of_kafka(files, *options)
    dump = dumped(*files, **OPTIONS[options])
    assert dump.out.splitlines() == out.splitlines()
    # Kafka's tool tells what is wrong in the order of a hash map
    assert sorted(dump.err.splitlines()) == sorted(line for line in err.splitlines() if not line.startswith("SLF4J"))
    assert dump.failures == 0

"""The kernels as plain Python: a second opinion on the compiled code, and line coverage."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

TESTS = Path(__file__).parents[1]
MODULES = (
    "varint",
    "crc",
    "record_vectors",
    "legacy_batch",
    "record_decoder",
    "malformed_records",
    "record_corruption",
    "point_scan",
    "golden_logs",
    "writer",
    "key_hash",
    "offset_map",
    "compaction",
    "compaction_rounds",
    "compaction_transactions",
    "foreign_arrays",
)
#: Not decided in kernels: another codec, another processor, many records, threads and timers.
#: The flip of all bits of a byte is enough. Batches of version 1 are cut off as in version 0.
LEFT_OUT = (
    "gzip",
    "snappy",
    "lz4",
    "zstd",
    "another_processor",
    "flipped and none-1",
    "truncation and v1",
    "half_load and 5000",
    "many_tombstones_grow_together",
    "outputs_grow_towards_the_segment_size",
    "a_full_map_makes_another_round",
    "enough_bytes_are_committed",
    "nothing_is_visible_before_a_flush",
    "threads_may_share_a_writer",
    "no_timer_outlives_its_writer",
    "all_log_files_of_one_format_line",
    "300000",
)
PROGRAM = """
import sys
import pytest
from distlog.core.format.kernels.record_scan import scan_records

assert type(scan_records).__name__ == "function", "compiled all the same"
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_the_format_tests_pass_without_the_compiler() -> None:
    files = [str(path) for module in MODULES for path in TESTS.rglob(f"test_{module}.py")]
    assert len(files) == len(MODULES)
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, "-k", " and ".join(f"not ({name})" for name in LEFT_OUT), *files],
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]

"""The checksums of many short ranges, against the library's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from compiled import compiled
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from raw_batches import batch, record

from distlog.core.arrays import MAX_LONG, byte_array
from distlog.core.errors import CorruptRecordError
from distlog.core.format import record_batch
from distlog.core.format.kernels import batch_scan as crc
from distlog.core.format.kernels.batch_scan import first_mismatch
from distlog.core.format.kernels.native import HAS_CRC_INSTRUCTION
from distlog.core.format.record_batch import BATCH, check_crcs, read_headers


def mismatch(data: bytes, ranges: list[tuple[int, int]], crcs: list[int]) -> int:
    """Return the first of the ranges with a wrong checksum, each as a batch without a prefix."""
    batches = np.zeros(len(ranges), BATCH)
    batches["magic"], batches["crc"] = 2, crcs
    batches["position"], batches["size"] = [start for start, _ in ranges], [end - start for start, end in ranges]
    return int(first_mismatch(byte_array(data), batches, MAX_LONG, 0))


def test_the_check_value_of_the_standard() -> None:
    assert mismatch(b"-123456789-", [(1, 10)], [0xE3069283]) == -1
    assert mismatch(b"-123456789-", [(1, 10)], [0xE3069282]) == 0


@given(st.binary(max_size=200), st.data())
def test_checksums_equal_the_librarys_at_every_alignment_and_length(data: bytes, draw: st.DataObject) -> None:
    start = draw.draw(st.integers(0, len(data)))
    end = draw.draw(st.integers(start, len(data)))
    crc = crc32c(data[start:end])
    assert mismatch(data, [(start, end)], [crc]) == -1
    assert mismatch(data, [(start, end), (start, end)], [crc, crc ^ 1 << draw.draw(st.integers(0, 31))]) == 1


BYTES = np.random.default_rng(1).integers(0, 256, 40_000, dtype=np.uint8).tobytes()
METHODS = {"tables": crc.crc_by_tables, **({"instruction": crc.crc_by_instruction} if HAS_CRC_INSTRUCTION else {})}
METHODS = {name: compiled(method) for name, method in METHODS.items()}
crc_with_batch = compiled(crc.crc_with_batch)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
@given(st.integers(0, 20_000), st.integers(0, 20_000) | st.sampled_from([1536, 12_288, 13_824, 13_831]), st.binary())
def test_either_method_gives_the_librarys_checksum(method: str, start: int, size: int, prior: bytes) -> None:
    part = BYTES[start : start + size]
    checksum = METHODS[method](crc32c(prior), byte_array(BYTES), start, start + size)
    assert checksum == crc32c(prior + part)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings", [{"NUMBA_CPU_NAME": "generic"}, {"NUMBA_CPU_NAME": "", "NUMBA_CPU_FEATURES": ""}]
)
def test_kernels_for_another_processor_do_without_the_instruction(settings: dict[str, str], tmp_path: Path) -> None:
    program = "import test_crc as t; assert not t.HAS_CRC_INSTRUCTION; t.test_the_check_value_of_the_standard()"
    tests = Path(__file__).parents[1]
    environment = {
        **os.environ,
        **settings,
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": f"{tests / 'support'}:{tests.parent}",
    }
    process = subprocess.run([sys.executable, "-c", program], env=environment, cwd=Path(__file__).parent, check=False)
    assert process.returncode == 0


def joined(checksum: int, data: bytes, batches: np.ndarray, prefix: int, joined_from: int = 0) -> int:
    for row in batches:
        checksum = crc_with_batch(checksum, byte_array(data), row, prefix, joined_from)
    return checksum


@given(
    st.binary(max_size=50), st.lists(st.binary(max_size=3000), max_size=5), st.integers(0, 30), st.integers(0, 3000)
)
def test_the_checksum_of_a_whole_comes_from_those_of_its_parts(
    prior: bytes, parts: list[bytes], prefix: int, joined_from: int
) -> None:
    parts = [bytes(prefix) + part for part in parts]
    batches = np.zeros(len(parts), BATCH)
    batches["size"] = [len(part) for part in parts]
    batches["position"] = np.cumsum(batches["size"]) - batches["size"]
    batches["magic"], batches["crc"] = 2, [crc32c(part[prefix:]) for part in parts]
    joint = b"".join(parts)
    assert joined(crc32c(prior), joint, batches, prefix, joined_from) == crc32c(prior + joint)


def test_parts_of_any_length_are_joined() -> None:
    data = bytes(range(256)) * 70_000
    for size in (1 << 24, (1 << 24) - 1, 12_345_678):
        batches = np.zeros(1, BATCH)
        batches["size"], batches["magic"], batches["crc"] = size, 2, crc32c(data[21:size])
        assert joined(99, data, batches, 21) == crc32c(data[:size], 99)


def test_a_message_of_an_old_format_is_read_as_its_own_checksum_is_another() -> None:
    batches = np.zeros(1, BATCH)
    batches["size"], batches["magic"], batches["crc"] = 5000, 1, 12345
    assert joined(99, bytes(5000), batches, 21) == crc32c(bytes(5000), 99)


@pytest.mark.parametrize("short_batch", [0, 1024, MAX_LONG])
@pytest.mark.parametrize("bad", [0, 1, 2, 3])
def test_the_first_bad_batch_is_named_whether_it_is_short_or_long(
    bad: int, short_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_batch, "SHORT_BATCH", short_batch)
    long = record(value=bytes(1024))
    parts = [batch([record()]), batch([long], base_offset=1), batch([record()], base_offset=2)]
    data = bytearray(b"".join([*parts, batch([long], base_offset=3)]))
    headers = read_headers(data)
    check_crcs(data, headers)
    for row in range(bad, 4):
        data[headers["position"][row] + 61] ^= 1
    with pytest.raises(CorruptRecordError, match=f"position={headers['position'][bad]} offset={bad}"):
        check_crcs(data, headers)


def test_batches_of_other_data_are_refused() -> None:
    data = batch([record()])
    with pytest.raises(ValueError, match="not of this data"):
        check_crcs(data[:-1], read_headers(data))

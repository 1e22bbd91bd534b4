"""Kafka's framings as bytes, everything that Java and other clients write, and hostile data."""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlog.core.arrays import new_array
from distlog.core.errors import CorruptRecordError, InvalidConfigError
from distlog.core.format import compression
from distlog.core.format.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD, Expander, compress, decompress

CODECS = [NONE, GZIP, SNAPPY, LZ4, ZSTD]
XERIAL = bytes.fromhex("82534e41505059000000000100000001")
TEXT = b"".join(b"line %d of a text that compresses; " % number for number in range(20_000))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [0, 1, 100, 32 * 1024, 64 * 1024, 64 * 1024 + 1, 500_000])
def test_compressed_data_round_trips(codec: int, size: int) -> None:
    data = TEXT[:size]
    assert bytes(decompress(codec, compress(codec, data), limit=size)) == data


@given(st.sampled_from(CODECS), st.binary(max_size=2000))
def test_any_bytes_survive_any_codec(codec: int, data: bytes) -> None:
    assert bytes(decompress(codec, compress(codec, data), limit=len(data))) == data


@pytest.mark.parametrize("codec", CODECS)
def test_one_byte_above_the_limit_is_refused(codec: int) -> None:
    for size in (1, 5000, 500_000):
        with pytest.raises(CorruptRecordError, match=r"more than is allowed \(limit=\d+\)"):
            decompress(codec, compress(codec, TEXT[:size]), limit=size - 1)


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_decompression_bomb_is_refused_before_it_is_in_memory(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = compress(codec, bytes(64 << 20))
    allocated: list[int] = []
    monkeypatch.setattr(compression, "new_array", lambda size, kind: allocated.append(size) or new_array(size, kind))
    with pytest.raises(CorruptRecordError, match="more than is allowed"):
        Expander(0).expand(codec, bomb, limit=1 << 20)
    assert 0 < max(allocated) <= 4 << 20


def test_a_snappy_length_field_alone_allocates_nothing() -> None:
    claims_200_mb = b"\x80\x80\x80\x64" + b"\0" * 100
    with pytest.raises(CorruptRecordError, match="too short for the length that it claims"):
        decompress(SNAPPY, claims_200_mb)
    with pytest.raises(CorruptRecordError, match="more than is allowed"):
        decompress(SNAPPY, b"\xff\xff\xff\xff\xff" + b"\0" * 100)


@pytest.mark.parametrize("codec", [GZIP, SNAPPY, LZ4, ZSTD])
def test_every_truncation_fails_or_ends_at_a_block(codec: int) -> None:
    packed = compress(codec, TEXT[:70_000])
    for size in [*range(1, 200), *range(200, len(packed), 97)]:
        try:
            expanded = decompress(codec, packed[:size])
        except CorruptRecordError:
            continue
        assert codec == SNAPPY
        assert len(expanded) % (32 * 1024) == 0


STARTS = {GZIP: b"\x1f\x8b\x08\0", SNAPPY: XERIAL, LZ4: b"\x04\x22\x4d\x18\x60\x40\x82", ZSTD: b"\x28\xb5\x2f\xfd"}


@given(st.sampled_from(list(STARTS)), st.booleans(), st.binary(max_size=300))
def test_noise_is_refused_or_expands_within_the_limit(codec: int, starts_well: bool, noise: bytes) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert len(decompress(codec, STARTS[codec] * starts_well + noise, limit=1000)) <= 1000


def test_snappy_is_framed_as_snappy_java_frames_it() -> None:
    assert compress(SNAPPY, b"ab") == XERIAL + bytes.fromhex("0000000402046162")
    framed = compress(SNAPPY, TEXT[: 40 * 1024])
    (first,) = struct.unpack_from(">i", framed, 16)
    (second,) = struct.unpack_from(">i", framed, 20 + first)
    assert len(framed) == 16 + 4 + first + 4 + second


def test_snappy_without_a_header_and_with_headers_between_is_read() -> None:
    block = compress(SNAPPY, b"some text")[20:]
    assert bytes(decompress(SNAPPY, block)) == b"some text"
    assert bytes(decompress(SNAPPY, compress(SNAPPY, b"some ") + compress(SNAPPY, b"text"))) == b"some text"


def test_snappy_blocks_above_32_kib_are_read() -> None:
    snappy = pytest.importorskip("snappy")
    block = snappy.compress(TEXT)
    assert bytes(decompress(SNAPPY, XERIAL + struct.pack(">i", len(block)) + block)) == TEXT


def test_an_lz4_frame_has_kafkas_descriptor_and_stores_what_does_not_shrink() -> None:
    assert compress(LZ4, b"ab").hex() == "04224d18604082" + "02000080" + "6162" + "00000000"
    assert compress(LZ4, b"").hex() == "04224d18604082" + "00000000"


@pytest.mark.parametrize("checksum", [False, True])
@pytest.mark.parametrize("sized", [False, True])
@pytest.mark.parametrize("block_size", [4, 5, 6, 7])
def test_lz4_frames_of_other_clients_are_read(checksum: bool, sized: bool, block_size: int) -> None:
    lz4 = pytest.importorskip("lz4.frame")
    options = {"block_checksum": checksum, "content_checksum": checksum, "store_size": sized}
    frame = lz4.compress(TEXT, block_size=block_size, block_linked=False, **options)
    assert bytes(decompress(LZ4, frame)) == TEXT


def test_an_lz4_frame_that_kafka_would_not_read_is_refused() -> None:
    frame = compress(LZ4, TEXT[:1000])
    with pytest.raises(CorruptRecordError, match="malformed"):
        decompress(LZ4, frame[:6] + b"\x83" + frame[7:])
    with pytest.raises(CorruptRecordError, match="independent blocks"):
        decompress(LZ4, frame[:4] + b"\x40" + frame[5:])
    with pytest.raises(CorruptRecordError, match="independent blocks"):
        decompress(LZ4, b"\x04\x22\x4d\x19" + frame[4:])


@pytest.mark.parametrize("sized", [False, True])
def test_in_format_0_the_header_checksum_of_lz4_does_not_matter(sized: bool) -> None:
    lz4 = pytest.importorskip("lz4.frame")
    frame = bytearray(lz4.compress(TEXT[:5000], store_size=sized, block_linked=False))
    frame[14 if sized else 6] ^= 0xFF
    assert bytes(decompress(LZ4, frame, magic=0)) == TEXT[:5000]
    for magic in (1, 2):
        with pytest.raises(CorruptRecordError, match="malformed"):
            decompress(LZ4, frame, magic=magic)


def test_gzip_of_several_members_is_read_and_one_member_is_written() -> None:
    assert bytes(decompress(GZIP, gzip.compress(b"some ") + gzip.compress(b"text"))) == b"some text"
    inflate = zlib.decompressobj(wbits=31)
    assert inflate.decompress(compress(GZIP, TEXT)) == TEXT
    assert inflate.eof
    assert not inflate.unused_data


def test_zstd_of_several_frames_without_their_sizes_is_read() -> None:
    zstandard = pytest.importorskip("zstandard")
    without_size = zstandard.ZstdCompressor(write_content_size=False)
    assert bytes(decompress(ZSTD, without_size.compress(TEXT) + without_size.compress(b"end"))) == TEXT + b"end"
    assert zstandard.frame_content_size(compress(ZSTD, TEXT)) == len(TEXT)


@pytest.mark.parametrize(("codec", "low", "high"), [(GZIP, 1, 9), (LZ4, 1, 3), (LZ4, 3, 12), (ZSTD, 1, 19)])
def test_a_higher_level_takes_less_room(codec: int, low: int, high: int) -> None:
    assert len(compress(codec, TEXT[:50_000], low)) > len(compress(codec, TEXT[:50_000], high))


def test_lz4_level_9_is_the_fast_compressor_as_in_kafka() -> None:
    assert compress(LZ4, TEXT, 9) == compress(LZ4, TEXT)
    assert len(compress(LZ4, TEXT, 17)) == len(compress(LZ4, TEXT, 12)) < len(compress(LZ4, TEXT, 9))


@pytest.mark.parametrize(("codec", "level"), [(GZIP, 10), (GZIP, -2), (LZ4, 0), (LZ4, 18)])
def test_a_level_that_the_codec_does_not_have_is_refused(codec: int, level: int) -> None:
    with pytest.raises(InvalidConfigError, match=f"level={level}"):
        compress(codec, b"x", level)


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused(codec: int) -> None:
    with pytest.raises(InvalidConfigError):
        compress(codec, b"")
    with pytest.raises(CorruptRecordError, match=f"codec={codec}"):
        decompress(codec, b"")

"""Batches with malformed records: each is refused with its position and the reason."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from decoded_rows import HEADERS, offsets
from raw_batches import batch, body, record, sized, varint

from distlog.core.errors import CorruptRecordError
from distlog.core.format.compression import CODEC_NAMES, compress
from distlog.core.format.kernels.record_scan import SLACK
from distlog.core.format.record_batch import COLUMNS, check_crcs, read_headers
from distlog.core.format.record_decoder import decode

HOSTILE = {
    "a length beyond the batch": varint(100) + body(),
    "a negative length": varint(-1) + body(),
    "a length of nothing": b"\0",
    "a length of six bytes": b"\x80" * 5 + b"\0" + body(),
    "the largest length": varint(2**31 - 1) + body(),
    "a body longer than its fields": sized(body() + b"\0"),
    "a body shorter than its fields": varint(len(body()) - 1) + body(),
    "nothing after the attributes": sized(b"\0"),
    "a timestamp cut off": sized(b"\0\x80\x80"),
    "a timestamp of eleven bytes": sized(b"\0" + b"\x80" * 10 + body()[1:]),
    "an offset of six bytes": sized(b"\0\0" + b"\x80" * 5 + body()[2:]),
    "a key beyond the record": sized(b"\0\0\0" + varint(10) + b"k" + sized(b"v") + b"\0"),
    "the longest key": sized(b"\0\0\0" + varint(2**31 - 1) + b"k" + sized(b"v") + b"\0"),
    "a value beyond the record": sized(b"\0\0\0" + sized(None) + varint(10) + b"v\0"),
    "the longest value": sized(b"\0\0\0" + sized(None) + varint(2**31 - 1) + b"v\0"),
    "a negative number of headers": sized(body(header_count=-1)),
    "more headers than bytes": sized(body(header_count=2**31 - 1)),
    "a header too few": sized(body(headers=HEADERS, header_count=4)),
    "a header too many": sized(body(headers=HEADERS, header_count=2)),
    "a null header key": sized(body(header_count=1) + sized(None) + sized(b"x")),
    "a null header key and nothing else": sized(body(header_count=1) + sized(None)),
    "a header key beyond the record": sized(body(header_count=1) + varint(30) + b"h" + sized(b"x")),
    "a header value beyond the record": sized(body(header_count=1) + sized(b"h") + varint(30) + b"x"),
    "an offset beyond the batch": record(1),
    "a negative offset delta": record(-1),
}


@pytest.mark.parametrize("codec", [0, 4], ids=CODEC_NAMES.__getitem__)
@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("following", [b"", b"\0" * 40], ids=["at the end", "before more"])
def test_a_malformed_record_is_refused_with_its_position(name: str, codec: int, following: bytes) -> None:
    section = bytes(compress(codec, HOSTILE[name] + following))
    bad = batch([], base_offset=30, count=1, last_delta=0, attributes=codec, section=section)
    data = batch([record()]) + bad
    headers = read_headers(data)
    check_crcs(data, headers)
    for columns, suffix in itertools.product((COLUMNS, ("offset",)), (b"", b"\0" * SLACK)):
        with pytest.raises(CorruptRecordError) as caught:
            decode(data + suffix, headers, columns=columns, file="t-0/x.log", file_position=1000)
        details = caught.value.details
        location = details["file"], details["position"], details["offset"]
        assert location == ("t-0/x.log", 1000 + len(data) - len(bad), 30)


def test_no_byte_past_the_data_is_read() -> None:
    # Only the plain-Python run of this test (test_record_kernels_pure) detects this read.
    cut_at_the_end = record(0, 0, None, b"12345") + varint(1) + b"\0"
    for section, count in [*((section, 1) for section in HOSTILE.values()), (cut_at_the_end, 2)]:
        data = batch([], count=count, last_delta=count - 1, section=section)
        for length in range(SLACK + 2):
            following = (b"\xff\xff\xff\x7f" * SLACK)[:length]
            with pytest.raises(CorruptRecordError):
                decode(data + following, read_headers(data), columns=("offset",))


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("a length beyond the batch", "length does not fit"),
        ("the largest length", "length does not fit"),
        ("a length of nothing", "length does not fit"),
        ("a key beyond the record", "key is longer"),
        ("the longest key", "key is longer"),
        ("a value beyond the record", "value is longer"),
        ("the longest value", "value is longer"),
        ("a negative number of headers", "number of headers"),
        ("more headers than bytes", "number of headers"),
        ("a null header key", "do not fill its length"),
        ("a negative offset delta", "offset is not after"),
        ("an offset beyond the batch", "past its batch"),
    ],
)
def test_the_error_names_the_wrong_field(name: str, complaint: str) -> None:
    data = batch([], count=1, last_delta=0, section=HOSTILE[name] + b"\0" * 40)
    with pytest.raises(CorruptRecordError, match=complaint):
        decode(data, read_headers(data))


def test_the_error_has_the_number_of_the_bad_record() -> None:
    data = batch([record(0), record(1), record(1)])
    with pytest.raises(CorruptRecordError, match=r"not after the previous offset.*record=2"):
        decode(data, read_headers(data))


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES.__getitem__)
@pytest.mark.parametrize(("count", "complaint"), [(2, "bytes after its last record"), (5, "length does not fit")])
def test_a_wrong_count_of_records_is_refused(codec: int, count: int, complaint: str) -> None:
    records = [record(delta, 0, None, b"value") for delta in range(3)]
    section = bytes(compress(codec, b"".join(records) + (b"" if count == 2 else b"\0")))
    data = batch(records, count=count, last_delta=9, attributes=codec, section=section)
    with pytest.raises(CorruptRecordError, match=complaint):
        decode(data, read_headers(data))


@pytest.mark.parametrize("codec", range(5), ids=CODEC_NAMES.__getitem__)
def test_a_count_that_the_bytes_cannot_hold_allocates_nothing(codec: int) -> None:
    section = bytes(compress(codec, record()))
    data = batch([], count=2**31 - 1, last_delta=2**31 - 1, attributes=codec, section=section)
    allocated = pa.total_allocated_bytes()
    with pytest.raises(CorruptRecordError, match="too short for its number of records"):
        decode(data, read_headers(data))
    assert pa.total_allocated_bytes() - allocated < 1 << 20


def test_trailing_bytes_are_refused_but_not_in_a_batch_without_records() -> None:
    data = batch([record()], section=record() + b"\0")
    with pytest.raises(CorruptRecordError, match="after its last record"):
        decode(data, read_headers(data))
    assert offsets(batch([], last_delta=3, section=b"\0\0")) == []


@pytest.mark.parametrize("codec", [5, 6, 7])
def test_an_unknown_codec_is_refused_with_its_position(codec: int) -> None:
    data = batch([record()], base_offset=5, attributes=codec)
    with pytest.raises(CorruptRecordError, match="newer Kafka") as caught:
        decode(data, read_headers(data), file="f")
    assert caught.value.details == {"file": "f", "position": 0, "offset": 5, "codec": codec}


@pytest.mark.parametrize("codec", [1, 2, 3, 4], ids=CODEC_NAMES.__getitem__)
def test_malformed_compressed_data_is_refused_with_its_position(codec: int) -> None:
    data = batch([record()], base_offset=5, attributes=codec, section=b"\x01\x02\x03")
    with pytest.raises(CorruptRecordError) as caught:
        decode(data, read_headers(data), file=["f"], file_position=np.array([9]))
    details = caught.value.details
    assert (details["file"], details["position"], details["offset"]) == ("f", 9, 5)

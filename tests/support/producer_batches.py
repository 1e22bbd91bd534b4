"""Batches of producers, and their validation."""

from __future__ import annotations

from typing import Any

import pytest
from raw_batches import batch, record
from topics import NOW

from distlog.core.config import TopicConfig
from distlog.core.format.compression import CODEC_NAMES, compress, decompress
from distlog.core.format.record_batch import HEADER_SIZE, check_crcs, read_headers
from distlog.core.format.record_encoder import ValidBatch
from distlog.core.log.producers import validate

CODECS = {name: codec for codec, name in enumerate(CODEC_NAMES)}


def records(*times: int, key: bytes | None = b"k", value: bytes = b"value") -> list[bytes]:
    """A record for each time, which is given relative to NOW."""
    return [record(delta, time, key, value) for delta, time in enumerate(times)]


def packed(contents: list[bytes], codec: str = "none", **fields: Any) -> bytes:
    section = compress(CODECS[codec], b"".join(contents)) if codec != "none" else None
    fields = {"section": section, "base_timestamp": NOW, "max_timestamp": NOW + 1, **fields}
    fields["attributes"] = fields.get("attributes", 0) | CODECS[codec]
    return batch(contents, **fields)


def checked(data: bytes, *, now_ms: int = NOW, **settings: Any) -> ValidBatch:
    """Validate a batch for a topic with settings, and check its header and its checksum."""
    valid = validate(data, TopicConfig(**settings), now_ms)
    assert read_headers(valid.data.data).tobytes() == valid.rows.tobytes()
    check_crcs(valid.data, valid.rows)
    return valid


def section(data: Any, codec: str) -> bytes:
    return bytes(decompress(CODECS[codec], bytes(data)[HEADER_SIZE:]))


def refused(kind: type[Exception], data: bytes, match: str | None = None, **settings: Any) -> Any:
    with pytest.raises(kind, match=match) as caught:
        checked(data, **settings)
    assert type(caught.value) is kind
    return caught.value

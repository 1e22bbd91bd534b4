"""The lines for batches and records of a log, named and ordered as by Kafka's `DumpLogSegments`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.batches.record_batch import APPEND_TIME, CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from distlog.core.buffers import new_array
from distlog.core.config import MAX_INT
from distlog.core.dump.control_records import MARKER, marker_values
from distlog.core.dump.line import Line, choice, constant, flag, number, optional, texts, time
from distlog.core.dump.scanned import Scanned
from distlog.core.kernel_tuples import RecordContent, Texts
from distlog.core.kernels.dump_lines import ABSENT, write_records
from distlog.core.kernels.text import JSON_GROWTH, SLACK, UTF8_GROWTH

Longs = npt.NDArray[np.int64]

_END = (
    number("position"),
    *time("maxTimestamp"),
    number("size"),
    number("magic"),
    choice("compresscodec", ("none", "gzip", "snappy", "lz4", "zstd", "unknown(5)", "unknown(6)", "unknown(7)")),
    number("crc"),
    flag("isvalid"),
)
BATCH = Line(
    "batch",
    (
        *(number(name) for name in ("baseOffset", "lastOffset", "count", "baseSequence", "lastSequence")),
        *(number(name) for name in ("producerId", "producerEpoch", "partitionLeaderEpoch")),
        flag("isTransactional"),
        flag("isControl"),
        optional("deleteHorizonMs"),
        *_END,
    ),
)
LEGACY_BATCH = Line("batch", (number("offset"), *_END))
_RECORD = (number("offset"), *time("timestamp"), number("keySize"), number("valueSize"))
RECORD = Line("record", (*_RECORD, number("sequence")), begin="|", end="")
#: The brace is in the lines of Kafka's tool too.
LEGACY_RECORD = Line("record", (*_RECORD, flag("isValid"), number("crc"), constant("}")), begin="|", end="")
BARE_RECORD = Line("record", (), end="")
_NOTHING = Line("", ())


@dataclass(frozen=True, slots=True)
class LogStyle:
    """What is printed of a record, and how."""

    metadata: bool
    content: bool
    as_json: bool

    def lines(
        self, batches: npt.NDArray[Any], origin: int, valid: npt.NDArray[np.bool_], found: Scanned
    ) -> memoryview:
        """The lines of `batches` (BATCH rows of one format), whose file has the position `origin` at `position` 0.

        `valid` says whose checksums hold, `found` has their records.
        """
        current = int(batches["magic"][0]) >= 2
        batch, record = BATCH if current else LEGACY_BATCH, RECORD if current else LEGACY_RECORD
        record = record if self.metadata else BARE_RECORD
        out = new_array(self._room(len(batches), batch, record, found), np.uint8)
        size = write_records(
            out,
            batch.layout(as_json=self.as_json),
            batch.values(len(batches), _batch_columns(batches, origin, valid)),
            found.counts,
            record.layout(as_json=self.as_json),
            record.values(found.size, _record_columns(batches, found)),
            (MARKER if self.metadata else _NOTHING).layout(as_json=self.as_json),
            self._markers(batches, found),
            RecordContent(found.data, found.fields.key, found.fields.value, found.fields.headed),
            np.zeros(int(self.content), np.uint8),
            self._texts(),
        )
        return memoryview(out.data)[:size]

    def _markers(self, batches: npt.NDArray[Any], found: Scanned) -> Longs:
        is_control = np.repeat((batches["attributes"] & CONTROL != 0) & (batches["magic"] >= 2), found.counts)
        if not is_control.any():
            return np.zeros((0, 0), np.int64)
        return MARKER.values(found.size, marker_values(found, is_control))

    def _room(self, batches: int, batch: Line, record: Line, found: Scanned) -> int:
        """As many bytes as the lines may take; a byte of a header's length gives what stands around its key."""
        growth = JSON_GROWTH + 2 if self.as_json else UTF8_GROWTH + 1
        around = sum(len(text) for style in _TEXTS.values() for text in style)
        longest = record.longest + MARKER.longest + around
        return batches * batch.longest + found.size * longest + growth * found.room + SLACK

    def _texts(self) -> Texts:
        return texts(_TEXTS[self.as_json, self.metadata])


#: By whether it is JSON, and whether metadata comes before: what `write_records` puts around headers and content.
_TEXTS = {
    (False, True): (" headerKeys: [", "]", " key: ", " payload: ", "", "", "\n"),
    (False, False): ("", "", "| key: ", " payload: ", "", "", "\n"),
    (True, True): (',"headerKeys":[', "]", ',"key":', ',"payload":', '{"base64":"', '"}', "}\n"),
    (True, False): ("", "", ',"key":', ',"payload":', '{"base64":"', '"}', "}\n"),
}


def _batch_columns(batches: npt.NDArray[Any], origin: int, valid: npt.NDArray[np.bool_]) -> dict[str, Any]:
    attributes, sequence = batches["attributes"], batches["base_sequence"].astype(np.int64)
    last_offset = batches["base_offset"] + batches["last_offset_delta"]
    return {
        "offset": last_offset,
        "baseOffset": batches["base_offset"],
        "lastOffset": last_offset,
        "count": batches["record_count"],
        "baseSequence": sequence,
        "lastSequence": np.where(sequence == -1, -1, (sequence + batches["last_offset_delta"]) & MAX_INT),
        "producerId": batches["producer_id"],
        "producerEpoch": batches["producer_epoch"],
        "partitionLeaderEpoch": batches["leader_epoch"],
        "isTransactional": attributes & TRANSACTIONAL != 0,
        "isControl": attributes & CONTROL != 0,
        "deleteHorizonMs": np.where(attributes & DELETE_HORIZON != 0, batches["base_timestamp"], ABSENT),
        "position": batches["position"] + origin,
        "timestamp_type": timestamp_types(batches),
        "maxTimestamp": batches["max_timestamp"],
        "size": batches["size"],
        "magic": batches["magic"],
        "compresscodec": attributes & CODEC_MASK,
        "crc": batches["crc"],
        "isvalid": valid,
    }


def timestamp_types(batches: npt.NDArray[Any]) -> Longs:
    """The type of each batch's timestamps, as `line.time` takes it."""
    types = np.where(batches["attributes"] & APPEND_TIME, 2, 1)
    return np.where((batches["magic"] == 1) | (batches["magic"] >= 2), types, 0)


def _record_columns(batches: npt.NDArray[Any], found: Scanned) -> dict[str, Any]:
    sequences = np.repeat(batches["base_sequence"].astype(np.int64), found.counts)
    deltas = found.offsets - np.repeat(batches["base_offset"], found.counts)
    crcs, hold = found.checksums
    return {
        "offset": found.offsets,
        "timestamp_type": np.repeat(timestamp_types(batches), found.counts),
        "timestamp": found.timestamps,
        "keySize": found.key_sizes,
        "valueSize": found.value_sizes,
        "sequence": np.where(sequences >= 0, (sequences + deltas) & MAX_INT, -1),
        "isValid": hold,
        "crc": crcs,
    }

"""Records per second between Arrow and Kafka's record batches, next to two Python clients' own codecs.

    python -m benchmarks.codec [--seconds 1.0] [--json]

Each side starts from and ends with its own types: distlog converts between one Arrow RecordBatch and one buffer of
batches, the clients between Python byte strings and the same buffer, one record per call. Decoding checks every
checksum and gives offset, timestamp, key, value and headers; encoding computes them. No compression, no keys.

Million records per second on one core of a 2-core AMD EPYC (Zen 3) virtual machine; Python 3.11.7, numpy 2.4.6,
pyarrow 26.0.1, numba 0.68.1, crc32c 2.9, aiokafka 0.14.0 (its C extension), kafka-python 3.0.12:

    value      decode: distlog  aiokafka  kafka-python      encode: distlog  aiokafka  kafka-python
    16 bytes              57.0       4.1           0.3                 68.4       5.3           0.5
    100 bytes             35.1       3.4           0.2                 38.3       4.1           0.4
    1000 bytes             6.3       1.1           0.2                  7.0       1.2           0.4
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa

from distlog.core.format.record_batch import check_crcs, read_headers
from distlog.core.format.record_decoder import decode
from distlog.core.format.record_encoder import encode

VALUE_SIZES = (16, 100, 1000)
DATA_BYTES = 4 << 20
BATCH_BYTES = 131_072
FIRST_TIMESTAMP = 1_700_000_000_000
UNIT = "records/s"


def run(seconds_per_case: float = 1.0) -> list[dict[str, Any]]:
    """Measure every case for about `seconds_per_case` on each side; a client that is not installed is left out."""
    return [result for size in VALUE_SIZES for result in _results(size, seconds_per_case)]


def _results(size: int, seconds: float) -> Iterator[dict[str, Any]]:
    values = [b"%0*d" % (size, number) for number in range(DATA_BYTES // (size + 10))]
    table = _table(values)
    encoded = encode(table, batch_bytes=BATCH_BYTES)
    data, batches = bytes(encoded.data), encoded.batches["record_count"].tolist()
    ours = {"decode": lambda: _decode(data), "encode": lambda: encode(table, batch_bytes=BATCH_BYTES)}
    for peer, peer_decode, peer_encode in _peers():
        theirs = {
            "decode": lambda peer_decode=peer_decode: peer_decode(data),
            "encode": lambda peer_encode=peer_encode: peer_encode(values, batches),
        }
        for name in ours:
            rates = [len(values) / best for best in _best(ours[name], theirs[name], seconds)]
            yield {
                "benchmark": "codec",
                "case": f"{name} {size}-byte values",
                "distlog": rates[0],
                "peer": rates[1],
                "peer_name": peer,
                "unit": UNIT,
                "ratio": rates[0] / rates[1],
            }


def _table(values: list[bytes]) -> pa.RecordBatch:
    timestamps = pa.array(range(FIRST_TIMESTAMP, FIRST_TIMESTAMP + len(values)), pa.int64())
    columns = {"timestamp": timestamps, "key": pa.nulls(len(values)), "value": pa.array(values, pa.binary())}
    return pa.RecordBatch.from_pydict(columns)


def _decode(data: bytes) -> pa.RecordBatch:
    batches = read_headers(data)
    check_crcs(data, batches)
    return decode(data, batches)


def _best(ours: Callable[[], object], theirs: Callable[[], object], seconds: float) -> tuple[float, float]:
    """The shortest time of each, measured in turn, so that both run under the same conditions."""
    sides = (ours, theirs)
    best = [float("inf")] * 2
    spent = [0.0] * 2
    for side in sides:
        side()
    while min(spent) < seconds:
        turn = spent.index(min(spent))
        start = time.perf_counter()
        sides[turn]()
        took = time.perf_counter() - start
        best[turn] = min(best[turn], took)
        spent[turn] += took
    return best[0], best[1]


def _peers() -> Iterator[tuple[str, Callable[[bytes], None], Callable[[list[bytes], list[int]], None]]]:
    try:
        from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
        from aiokafka.record.memory_records import MemoryRecords as AioRecords

        yield "aiokafka", lambda data: _iterate(AioRecords(data)), lambda *rows: _append(AioBuilder, *rows)
    except ImportError:
        pass
    try:
        from kafka.record.default_records import DefaultRecordBatchBuilder
        from kafka.record.memory_records import MemoryRecords

        builder = DefaultRecordBatchBuilder
        yield "kafka-python", lambda data: _iterate(MemoryRecords(data)), lambda *rows: _append(builder, *rows)
    except ImportError:
        pass


def _iterate(records: Any) -> None:
    while (batch := records.next_batch()) is not None:
        if not batch.validate_crc():
            raise ValueError("checksum")
        for record in batch:
            record.offset, record.timestamp, record.key, record.value, record.headers  # noqa: B018


def _append(builder_type: Any, values: list[bytes], batches: Iterable[int]) -> None:
    first = 0
    for count in batches:
        builder = builder_type(2, 0, 0, -1, -1, -1, 1 << 30)
        for offset in range(count):
            builder.append(offset, FIRST_TIMESTAMP + offset, None, values[first + offset], [])
        builder.build()
        first += count


def main() -> None:
    """Print the ratios as a table, or with --json as one JSON list."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=1.0, help="per case and side")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    results = run(arguments.seconds)
    print(json.dumps(results) if arguments.json else _as_text(results))


def _as_text(results: list[dict[str, Any]]) -> str:
    lines = [f"{'case':<26}{'distlog M/s':>12}{'peer M/s':>10}{'ratio':>8}  peer"]
    for result in results:
        rates = f"{result['distlog'] / 1e6:>12.1f}{result['peer'] / 1e6:>10.2f}{result['ratio']:>7.1f}x"
        lines.append(f"{result['case']:<26}{rates}  {result['peer_name']}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

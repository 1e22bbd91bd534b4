"""The files in `data/` that a real Kafka broker wrote, and what a Kafka consumer read from them."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "data"
_TYPES = {"CreateTime": 0, "LogAppendTime": 1, None: -1}


@dataclass(frozen=True, slots=True)
class GoldenPartition:
    """One partition folder: `folder` holds its files, `name` is `<stage>.<partition>`."""

    name: str
    folder: Path
    expected: Path

    @property
    def logs(self) -> list[Path]:
        return sorted(self.folder.glob("*.log"))

    def records(self, *, committed: bool = False) -> list[dict[str, Any]]:
        """The consumer's records, in the shape of `distlog` rows (without `partition`), timestamps as integers."""
        path = self.expected.with_name(self.expected.name.replace(".jsonl", ".committed.jsonl"))
        with gzip.open(path if committed else self.expected, "rt", encoding="utf-8") as lines:
            return [_row(json.loads(line)) for line in lines]


def partitions() -> dict[str, GoldenPartition]:
    """Every partition that comes with its records, by `first.txn-0`, `cleaned.compact-txn-0`, `logs.v0-lz4-0`, ..."""
    golden = [
        GoldenPartition(f"{stage.name}.{folder.name}", folder, expected)
        for stage in sorted([*(DATA / "kafka-4.1").iterdir(), DATA / "kafka-2.8" / "logs"])
        if stage.is_dir()
        for folder in sorted(stage.iterdir())
        for expected in [
            stage.parent / f"{'' if stage.name == 'logs' else stage.name + '.'}{folder.name}.jsonl.gz",
        ]
        if folder.is_dir() and expected.exists()
    ]
    assert golden, "the golden files are missing"
    return {partition.name: partition for partition in golden}


def _row(line: dict[str, Any]) -> dict[str, Any]:
    return {
        "offset": line["offset"],
        "timestamp": line["timestamp"],
        "timestamp_type": _TYPES[line["timestamp_type"]],
        "key": _bytes(line["key"]),
        "value": _bytes(line["value"]),
        "headers": [{"key": name, "value": _bytes(value)} for name, value in line["headers"]],
    }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)

"""Runs dumps in memory."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any, NamedTuple

from distlog.core.kafka.dump import DumpedFile, dump
from distlog.core.kafka.dump_lines import DumpOptions, DumpOutput


class Dumped(NamedTuple):
    out: bytes
    err: str
    failures: int

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def dumped(*files: Path | str, as_json: bool = False, **options: Any) -> Dumped:
    out, err = io.BytesIO(), io.BytesIO()
    output = DumpOutput(out, err, as_json)
    dump([DumpedFile.from_address(str(file)) for file in files], DumpOptions(**options), output)
    return Dumped(out.getvalue(), err.getvalue().decode(), output.failures)

"""Standard streams that are not as a command wants them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from distlog.console.streams import buffer_lines


def test_a_caller_supplied_stream_without_a_buffer_stays_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open(tmp_path / "out", "wb", buffering=0) as raw:
        stream = io.TextIOWrapper(raw, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        buffer_lines()
        assert sys.stdout is stream
        stream.detach()

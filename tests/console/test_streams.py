"""Standard streams that are not as a command wants them."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from distlog.console.streams import write_whole


def test_a_stream_without_a_buffer_that_a_caller_has_put_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under a runner of tests, which takes the output and goes on when the command has ended."""
    with open(tmp_path / "out", "wb", buffering=0) as raw:
        stream = io.TextIOWrapper(raw, write_through=True)
        monkeypatch.setattr(sys, "stdout", stream)
        write_whole()
        assert sys.stdout is stream
        stream.detach()

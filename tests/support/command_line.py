"""The `distlog` command, run inside the test's process."""

from __future__ import annotations

import io
import json
import sys
from typing import Any, NamedTuple

import pytest

from distlog.cli import main


class Outcome(NamedTuple):
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The tab-separated lines."""
        return [line.split("\t") for line in self.out.splitlines()]


class CommandLine:
    """Runs `distlog` in this process on one topic."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.url, self._monkeypatch, self._capsys = url, monkeypatch, capsys

    def __call__(self, command: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        return self.bare(command, self.url, *arguments, stdin=stdin)

    def bare(self, command: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        self._monkeypatch.setattr(sys, "argv", ["distlog", command, *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        assert ended.value.code is None or isinstance(ended.value.code, int)
        return Outcome(ended.value.code or 0, out, err)

    def ok(self, command: str, *arguments: str, stdin: bytes = b"") -> Outcome:
        outcome = self(command, *arguments, stdin=stdin)
        assert (outcome.status, outcome.err) == (0, "")
        return outcome

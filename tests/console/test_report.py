"""How commands and jobs end: the output for people and programs, and the exit status."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pyarrow as pa
import pytest

from distlog.console.output import Report, Summary, print_failure, print_report, status_of
from distlog.core.errors import CorruptRecordError, InvalidConfigError

LEFTOVER = Summary("left 2 files", {"files": 2}, [{"name": "a", "size": 1}, {"name": "b", "size": 2}], ["name"])


class Damaged:
    def __str__(self) -> str:
        return "1 damaged"

    def to_dict(self) -> dict[str, Any]:
        return {"damaged": 1, "ok": False}

    def to_table(self) -> pa.Table:
        return pa.table({"file": ["x.log"]})


def printed(report: Report, capsys: pytest.CaptureFixture[str], *, as_json: bool) -> list[str]:
    print_report(report, as_json=as_json)
    return capsys.readouterr().out.splitlines()


def test_text_output_is_the_summary_and_the_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(LEFTOVER, capsys, as_json=False) == ["left 2 files", "name", "a", "b"]
    assert printed(Damaged(), capsys, as_json=False) == ["1 damaged", "file", "x.log"]
    assert printed(Summary("", {"rows": []}), capsys, as_json=False) == []


@pytest.mark.parametrize("report", [LEFTOVER, Damaged()])
def test_json_output_is_one_object_on_the_last_line(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    print("what came before")
    (_, line) = printed(report, capsys, as_json=True)
    assert json.loads(line) == report.to_dict()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_json_output_does_not_depend_on_the_encoding(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    for errors in ("strict", "surrogateescape"):
        out = io.TextIOWrapper(io.BytesIO(), encoding, errors)
        monkeypatch.setattr(sys, "stdout", out)
        document = {"topics": ["/data/\u65e5\u672c", "/data/\udcff"]}
        print_report(Summary("", document), as_json=True)
        assert json.loads(out.buffer.getvalue()) == document


def test_the_status_says_whether_all_is_well() -> None:
    assert (status_of(LEFTOVER), status_of(Damaged())) == (0, 1)


@pytest.mark.parametrize(("error", "status"), [(InvalidConfigError("a\n b"), 2), (CorruptRecordError("a\n b"), 1)])
def test_a_failure_is_one_line_and_a_status(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert print_failure("distlog", error) == status
    assert capsys.readouterr().err == "distlog: a b\n"
    assert print_failure("distlog", error, "because") == status
    assert capsys.readouterr().err == "distlog: because\n"


def test_names_in_a_failure_do_not_reach_the_terminal_raw(capsys: pytest.CaptureFixture[str]) -> None:
    print_failure("distlog", OSError("no \x1b[2Jfolder\x9b"), as_json=True)
    printed = capsys.readouterr()
    assert printed.err == "distlog: no \\x1b[2Jfolder\\x9b\n"
    assert json.loads(printed.out)["error"] == "no \x1b[2Jfolder\x9b"

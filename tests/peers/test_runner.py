"""The runner of clients in other languages, with a program of its own: no network, and nothing to fetch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import peers.__main__ as runner
from peers.programs import MissingError, Program
from peers.results import Expected, Result, expected_failures, parsed, summary, table, wrong
from peers.servers import Servers

PRINTED = "ok reads 12\\nfailed writes no such topic\\nend"


def running(lines: str) -> Program:
    command = [sys.executable, "-c", f"print('{lines}')"]
    return Program("a-client", "python", "1.0", lambda cache, version: command)


def missing(cache: Path, version: str) -> list[str]:
    raise MissingError("no cobol here")


@contextmanager
def nothing(folder: Path) -> Iterator[Servers]:
    yield Servers("127.0.0.1:1", "127.0.0.1:2")


def ran(program: Program, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    programs = (program, Program("another", "cobol", "2.0", missing))
    monkeypatch.setattr(runner, "PROGRAMS", programs)
    monkeypatch.setattr(runner, "_servers", lambda *_: {"gateway": nothing})
    return runner.main(["--cache", str(folder / "cache"), "--logs", str(folder / "logs")])


def test_a_failed_story_makes_the_run_fail_and_a_missing_language_is_skipped_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(running(PRINTED), tmp_path, monkeypatch) == 1
    printed = capsys.readouterr().out
    assert "a-client  reads        OK\na-client  writes       FAILED" in printed
    assert "another   the-program  SKIPPED" in printed
    assert "a-client, writes, gateway: no such topic" in printed
    assert "| a-client | 1.0 | 1 of 2 |" in printed
    assert ran(running("ok reads\\nend"), tmp_path, monkeypatch) == 0


def test_a_program_that_ends_early_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(running("ok reads"), tmp_path, monkeypatch) == 1
    found = parsed("a-client", "gateway", ["ok reads 1", "noise", "skipped writes no codec"], "ended with 1")
    assert [(each.story, each.end, each.reason) for each in found] == [
        ("reads", "ok", "1"),
        ("writes", "skipped", "no codec"),
        ("the-program", "failed", "ended with 1"),
    ]


def test_an_expected_failure_is_no_fault_and_one_that_does_not_come_is() -> None:
    known = [Expected("java*", "quorum", "gateway*", "there is none")]
    failed, good = (Result("java-4.0", "quorum", "gateway-s3", end, "why") for end in ("failed", "ok"))
    assert wrong([failed], known) == []
    assert table([failed], known, ["gateway-s3"]).splitlines()[1].split() == ["java-4.0", "quorum", "expected"]
    (fault,) = wrong([good], known)
    assert "is expected to fail, and did not (there is none)" in fault
    # a broker has to meet every expectation
    assert len(wrong([Result("java", "quorum", "broker", "failed", "why")], known)) == 1
    assert summary([failed], {}).splitlines()[2] == "| java-4.0 |  | 0 of 1 |"


def test_each_expected_failure_has_a_reason_and_is_of_gateways() -> None:
    found = expected_failures(Path(runner.__file__).parent / "expected_failures.toml")
    assert found
    assert all(each.reason and each.server.startswith("gateway") for each in found)

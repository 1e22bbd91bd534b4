"""docs/transactions.md cannot drift: its example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import distlog

TEXT = (Path(__file__).parents[2] / "docs" / "transactions.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_local", [False, True])
def test_the_example_runs(is_local: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = distlog.create(f"{tmp_path}/payments" if is_local else f"memory://{tmp_path}/payments")
    found = re.search(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert found
    exec(found[1], {"topic": topic})
    assert capsys.readouterr().out == "[b'debit 5', b'credit 5']\n"

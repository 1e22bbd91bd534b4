"""docs/transactions.md cannot drift: its example runs."""

from __future__ import annotations

import uuid

import pytest
from docs_pages import Reader


@pytest.mark.parametrize("root", ["./logs", "memory://"])
def test_the_example_runs(root: str, reader: Reader) -> None:
    reader.pastes("docs/transactions.md", "./logs", root if root == "./logs" else f"{root}{uuid.uuid4().hex}")

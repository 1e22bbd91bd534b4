"""The table of the cost of features can be reproduced: its files exist, and the page has its features."""

from __future__ import annotations

import pytest
from docs_pages import read, table

from tools import feature_price


def test_each_pattern_has_files_and_each_feature_a_row() -> None:
    pytest.importorskip("pyspark")
    rows = list(feature_price.rows())
    page = table(read("docs/design/decisions.md"), "## The price of each feature")
    assert [row[0] for row in page] == [row[0] for row in rows]
    assert all(row[1] != "0" for row in rows)


def test_a_missing_file_is_refused() -> None:
    missing = feature_price.Feature("dump", ("distlog/core/kafka/dump*.py", "distlog/gone.py"), "dump/", "")
    with pytest.raises(ValueError, match=r"no file matches distlog/gone\.py"):
        feature_price.files_of(missing, set())

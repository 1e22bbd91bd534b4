"""A run tells which tests without a mark are too dear for `make check`."""

from __future__ import annotations

from typing import Any

import pytest
from cpu_budget import BUDGET_S, over_budget


def report(name: str, cost_s: float, *marks: str, when: Any = "call") -> pytest.TestReport:
    keywords = dict.fromkeys((name, *marks), 1)
    return pytest.TestReport(
        name, (name, 1, name), keywords, "passed", None, when, user_properties=[("cpu_s", cost_s)]
    )


def test_tests_over_the_budget_are_told_unless_a_mark_says_so() -> None:
    reports = [
        report("cheap", BUDGET_S / 2),
        report("dear", BUDGET_S + 1),
        report("dearest", BUDGET_S + 2),
        report("known", BUDGET_S + 3, "long"),
        report("of_spark", BUDGET_S + 3, "spark"),
        report("ended", BUDGET_S + 3, when="teardown"),
    ]
    assert list(over_budget(reports)) == ["4.0 s of CPU: dearest", "3.0 s of CPU: dear"]

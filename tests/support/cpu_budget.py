"""How much CPU each test took, and which took more than one without a mark may: a report, since time is no proof."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

#: What a test may take, with the processes that it waited for, that has none of MARKS.
BUDGET_S = 2.0
MARKS = frozenset({"long", "spark", "s3", "stores", "kafka"})


def cpu_s() -> float:
    """The CPU of this process and of those that it waited for, so far."""
    return sum(os.times()[:4])


def over_budget(reports: Iterable[Any]) -> Iterator[str]:
    """A line for each test that took more than BUDGET_S and has no mark that says so, the costliest first."""
    calls = (report for report in reports if report.when == "call" and not MARKS & set(report.keywords))
    took = ((dict(call.user_properties).get("cpu_s", 0.0), call.nodeid) for call in calls)
    for seconds, test in sorted(took, reverse=True):
        if seconds > BUDGET_S:
            yield f"{seconds:.1f} s of CPU: {test}"

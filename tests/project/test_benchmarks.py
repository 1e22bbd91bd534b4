"""The report of the benchmarks: figures that others stated are never shown as measured."""

from __future__ import annotations

from typing import Any

from benchmarks import log
from benchmarks.__main__ import text


def row(case: str, **more: Any) -> dict[str, Any]:
    numbers = {"distlog": 1.5, "peer": 3.0, "unit": "us", "ratio": 2.0, "peer_name": "a plain write"}
    return {"benchmark": "log", "case": case, **numbers, **more}


def test_stated_figures_have_a_list_of_their_own_behind_the_table() -> None:
    rows = [row("one", stated="10 us by a broker"), row("one", stated="10 us by a broker"), row("two")]
    table, _, rest = text({"machine": {"cores": "2"}, "rows": rows}).partition("\n\n")
    assert "broker" not in table
    assert rest.splitlines() == [
        "Measured with cores 2.",
        "",
        "Stated, not measured in this run:",
        "- log, one: 10 us by a broker",
    ]


def test_a_report_without_stated_figures_has_no_such_list() -> None:
    assert text({"machine": {"cores": "2"}, "rows": [row("one")]}).endswith("\n\nMeasured with cores 2.")


def test_a_row_of_a_case_with_a_stated_figure_has_it_and_its_source() -> None:
    for case, stated in log.STATED.items():
        assert "on another machine" in stated
        assert log.row_of(case, "us", 1.0, 2.0, "a plain write")["stated"] == stated
    assert "stated" not in log.row_of("append batches, 2 processes", "us", 1.0, 2.0, "a plain write")

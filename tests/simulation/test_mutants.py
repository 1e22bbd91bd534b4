"""Mutants are small changes of modules that carry promises; a table shows what found them."""

from __future__ import annotations

from collections import Counter

import pytest

from simulation import mutants
from simulation.mutants import MODULES


@pytest.mark.long
def test_each_area_has_as_many_mutants_and_the_same_seed_chooses_the_same() -> None:
    first, second = (mutants.choose(2 * len(MODULES), seed=3) for _ in range(2))
    assert Counter(mutant.area for mutant in first) == Counter([*MODULES, *MODULES])
    assert [mutant.diff for mutant in first] == [mutant.diff for mutant in second]
    assert all({line[0] for line in mutant.diff.splitlines()} == {"-", "+"} for mutant in first)


def test_the_table_shows_what_found_the_mutants_of_each_area() -> None:
    def entry(area: str, found_by: str, *, is_executed: bool = True) -> dict[str, object]:
        return {"area": area, "found_by": found_by, "is_executed": is_executed}

    entries = [
        entry("vacuum", "explorer"),
        entry("vacuum", ""),
        entry("groups", ""),
        entry("groups", "", is_executed=False),
    ]
    rows = mutants.table(entries).splitlines()[2:]
    assert rows == [
        "| groups | 2 | 1 | 0 | 0 | 0 | 0 | 0 | 1 |",
        "| vacuum | 2 | 0 | 0 | 1 | 0 | 0 | 0 | 1 |",
        "| all | 4 | 1 | 0 | 1 | 0 | 0 | 0 | 2 |",
    ]


@pytest.mark.long
def test_the_explorer_finds_a_writer_that_takes_the_commit_of_another_for_its_own() -> None:
    candidates = (make() for kind, make in mutants.mutants("commits", "distlog.core.commits.commit_log"))
    mutant = next(
        mutant
        for mutant in candidates
        if mutant is not None and mutant.function == "CommitLog.put_if_next" and "!=" in mutant.diff
    )
    assert "return None if existing != attempt.data else existing" in mutant.diff
    mutant.scenarios = ["two appends"]
    found_by, how = mutants.attempt_in_fork(mutant, cpu_s=10.0)
    assert found_by == "at once"
    assert "two appends" in how


@pytest.mark.long
def test_a_mutant_that_breaks_nothing_survives() -> None:
    candidates = (make() for kind, make in mutants.mutants("vacuum", "distlog.core.maintain.vacuum"))
    mutant = next(mutant for mutant in candidates if mutant is not None)
    mutant.scenarios = ["two appends"]
    assert mutants.attempt_in_fork(mutant, cpu_s=0.5) == ("", "")

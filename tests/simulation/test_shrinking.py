"""A history that breaks a promise is made smaller, and printed as a test."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation import disk_histories
from simulation.history import Plan, plan
from simulation.kinds import ON_DISK
from simulation.shrinking import arguments_of, as_test, shrink, smaller

BUG = "recovery cuts a sound batch"


def drawn() -> Plan:
    return next(drawn for drawn in map(plan, range(1000)) if len(drawn.cast) > 4 and drawn.faults.dropped)


def broken_by(candidate: Plan) -> str | None:
    """As if the first two actors and lost requests broke a promise, in twenty seconds."""
    if candidate.acts(0) and candidate.acts(1) and candidate.faults.dropped and candidate.length_s >= 20:
        value = b"7" + b"." * int(candidate.length_s / 8)
        offset = (1, 0) if candidate.length_s >= 40 else None
        return f"seed {candidate.seed}: record {value!r} at {offset} is there 2 times"
    return "another fault" if candidate.faults.dropped else None


def test_only_what_breaks_the_promise_is_left() -> None:
    smallest = shrink(drawn(), str(broken_by(drawn())), broken_by)
    assert smallest.acting == [0, 1]
    assert 20 <= smallest.length_s < 40
    assert smallest.faults.dropped
    assert not smallest.faults.twice
    assert not smallest.faults.throttled


def test_the_command_runs_the_smaller_history_again() -> None:
    smallest = shrink(drawn(), str(broken_by(drawn())), broken_by)
    words = arguments_of(drawn(), smallest)
    without = [words[index + 1] for index, word in enumerate(words) if word == "--without"]
    again = smaller(
        plan(smallest.seed),
        cast=words[words.index("--cast") + 1],
        length_s=float(words[words.index("--length") + 1]) if "--length" in words else None,
        without=without,
        fate=int(words[words.index("--fate") + 1]) if "--fate" in words else 0,
    )
    assert replace(again, cast=()) == replace(smallest, cast=())


@pytest.mark.long
def test_a_history_on_a_disk_that_finds_a_planted_bug_is_made_smaller() -> None:
    drawn = disk_histories.plan(ON_DISK.kept_seeds()[BUG] or 0)

    def fails(candidate: disk_histories.DiskPlan) -> str | None:
        error = ON_DISK.history(candidate)[1]
        return None if error is None else str(error)

    with ON_DISK.bugs[BUG].plant():
        broken = fails(drawn)
        assert broken is not None
        smallest = shrink(drawn, broken, fails, most=7)
        assert smallest.length_s < drawn.length_s or smallest.words < drawn.words
        # the names of files and ids depend on the seed, too
        assert fails(smallest) == fails(smallest)


def test_it_is_printed_as_a_test() -> None:
    smallest = replace(drawn(), acting=[1, 2])
    text = as_test(["--disk", *arguments_of(drawn(), smallest)], "record b'1' is lost")
    assert f'simulated("--disk", "--seed", "{smallest.seed}", "--cast", "1,2")' in text
    compile(text, "test", "exec")

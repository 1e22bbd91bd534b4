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
    """A plan with several actors and faults."""
    return next(each for each in map(plan, range(1000)) if len(each.cast) > 4 and each.faults.lost)


def broken_by(made: Plan) -> str | None:
    """As if the first two actors and lost requests broke a promise, in twenty seconds."""
    if made.acts(0) and made.acts(1) and made.faults.lost and made.length_s >= 20:
        value, offset = b"7" + b"." * int(made.length_s / 8), (1, 0) if made.length_s >= 40 else None
        return f"seed {made.seed}: record {value!r} at {offset} is there 2 times"
    return "another fault" if made.faults.lost else None


def test_only_what_breaks_the_promise_is_left() -> None:
    made = shrink(drawn(), str(broken_by(drawn())), broken_by)
    assert made.chosen == [0, 1]
    assert 20 <= made.length_s < 40
    assert made.faults.lost
    assert not made.faults.twice
    assert not made.faults.throttled


def test_the_command_runs_the_smaller_history_again() -> None:
    made = shrink(drawn(), str(broken_by(drawn())), broken_by)
    words = arguments_of(drawn(), made)
    without = [words[at + 1] for at, word in enumerate(words) if word == "--without"]
    again = smaller(
        plan(made.seed),
        cast=words[words.index("--cast") + 1],
        length_s=float(words[words.index("--length") + 1]) if "--length" in words else None,
        without=without,
        fate=int(words[words.index("--fate") + 1]) if "--fate" in words else 0,
    )
    assert replace(again, cast=()) == replace(made, cast=())


@pytest.mark.long
def test_a_history_on_a_disk_that_finds_a_planted_bug_is_made_smaller() -> None:
    drawn = disk_histories.plan(ON_DISK.found()[BUG] or 0)

    def fails(made: disk_histories.DiskPlan) -> str | None:
        error = ON_DISK.history(made)[1]
        return None if error is None else str(error)

    with ON_DISK.bugs[BUG].plant():
        broken = fails(drawn)
        assert broken is not None
        made = shrink(drawn, broken, fails, most=7)
        assert made.length_s < drawn.length_s or made.words < drawn.words
        # the names of files and ids are those of the seed, too
        assert fails(made) == fails(made)


def test_it_is_printed_as_a_test() -> None:
    made = replace(drawn(), chosen=[1, 2])
    text = as_test(["--disk", *arguments_of(drawn(), made)], "record b'1' is lost")
    assert f'simulated("--disk", "--seed", "{made.seed}", "--cast", "1,2")' in text
    compile(text, "test", "exec")

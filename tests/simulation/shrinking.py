"""Makes a history that breaks a promise smaller: fewer actors, fewer kinds of faults, a shorter time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product
from typing import TypeVar

from simulation.history import Drawn

Plan = TypeVar("Plan", bound=Drawn)
#: How many histories of a smaller plan are tried.
FATES = 6
#: A history shorter than this shows nothing.
LEAST_S = 1.0


def arguments_of(drawn: Plan, made: Plan) -> list[str]:
    """The arguments of the command that run what was made of a plan that was drawn."""
    arguments = ["--seed", str(made.seed)]
    if made.chosen is not None:
        arguments += ["--cast", ",".join(map(str, made.chosen))]
    if made.length_s != drawn.length_s:
        arguments += ["--length", f"{made.length_s:g}"]
    if made.fate:
        arguments += ["--fate", str(made.fate)]
    for each in fields(drawn.faults):
        if getattr(made.faults, each.name) != getattr(drawn.faults, each.name):
            arguments += ["--without", each.name]
    return arguments


def smaller(
    drawn: Plan,
    *,
    cast: str | None = None,
    length_s: float | None = None,
    without: list[str] | None = None,
    fate: int = 0,
) -> Plan:
    """A plan with the changes that arguments of the command ask for."""
    made = replace(drawn, faults=replace(drawn.faults, **dict.fromkeys(without or (), 0.0)), fate=fate)
    if cast is not None:
        made = replace(made, chosen=[int(number) for number in cast.split(",")])
    return made if length_s is None else replace(made, length_s=length_s)


def shrink(drawn: Plan, broken: str, attempt: Callable[[Plan], str | None], most: int = 300) -> Plan:
    """The smallest plan that was found in so many attempts, in which the same is broken.

    `attempt` runs the history of a plan, and returns the text of what was broken in it. A smaller plan draws other
    numbers, so it has another history: it is tried with several fates.
    """
    is_smaller, left = True, most
    while is_smaller:
        is_smaller = False
        for fate, candidate in product(range(FATES), list(_candidates(drawn))):
            if not left:
                return drawn
            left -= 1
            candidate = replace(candidate, fate=fate or drawn.fate)
            found = attempt(candidate)
            if found is not None and _kind(found) == _kind(broken):
                drawn, is_smaller = candidate, True
                break
    return drawn


def _candidates(drawn: Plan) -> Iterator[Plan]:
    chosen = list(range(len(drawn.cast))) if drawn.chosen is None else list(drawn.chosen)
    for number in reversed(chosen) if len(chosen) > 1 else ():
        yield replace(drawn, chosen=[each for each in chosen if each != number])
    if drawn.length_s >= 2 * LEAST_S:
        yield replace(drawn, length_s=drawn.length_s / 2)
    for each in fields(drawn.faults):
        if each.name != "still_s" and getattr(drawn.faults, each.name):
            yield replace(drawn, faults=replace(drawn.faults, **{each.name: 0.0}))


def _kind(broken: str) -> str:
    """What is broken, whoever met it, without values, places, numbers, ids, lists and the details of an error."""
    values = r"b'[^']*'|None|\(\d+, \d+\)|[0-9a-f-]{8,}|[0-9]+"
    return re.sub(rf"^\S+ ended with | ?\w*\(\w+=.*\)|{values}|\[.*\]|\{{.*\}}", "#", broken)


def as_test(arguments: list[str], broken: str) -> str:
    """A test for test_histories.py, which fails as long as the command with these arguments finds what is broken."""
    seed, given = arguments[arguments.index("--seed") + 1], ", ".join(f'"{each}"' for each in arguments)
    return f"""
def test_history_of_seed_{seed}_keeps_every_promise() -> None:
    # {broken[:100]}
    done = simulated({given})
    assert done.returncode == 0, done.stdout + done.stderr
"""

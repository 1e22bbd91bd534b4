"""Makes a history that breaks a promise smaller: fewer actors, fewer kinds of faults, a shorter time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import TypeVar

from simulation.history import Drawn

Plan = TypeVar("Plan", bound=Drawn)
#: A history shorter than this shows nothing.
LEAST_S = 1.0


def arguments_of(drawn: Plan, made: Plan) -> list[str]:
    """The arguments of the command that run what was made of a plan that was drawn."""
    arguments = ["--seed", str(made.seed)]
    if made.chosen is not None:
        arguments += ["--cast", ",".join(map(str, made.chosen))]
    if made.length_s != drawn.length_s:
        arguments += ["--length", f"{made.length_s:g}"]
    for each in fields(drawn.faults):
        if getattr(made.faults, each.name) != getattr(drawn.faults, each.name):
            arguments += ["--without", each.name]
    return arguments


def smaller(
    drawn: Plan, *, cast: str | None = None, length_s: float | None = None, without: list[str] | None = None
) -> Plan:
    """A plan with the changes that arguments of the command ask for."""
    made = replace(drawn, faults=replace(drawn.faults, **dict.fromkeys(without or (), 0.0)))
    if cast is not None:
        made = replace(made, chosen=[int(number) for number in cast.split(",")])
    return made if length_s is None else replace(made, length_s=length_s)


def shrink(drawn: Plan, broken: str, attempt: Callable[[Plan], str | None], most: int = 100) -> Plan:
    """The smallest plan that was found in so many attempts, in which the same is broken.

    `attempt` runs the history of a plan, and returns the text of what was broken in it.
    """
    is_smaller, left = True, most
    while is_smaller:
        is_smaller = False
        for candidate in _candidates(drawn):
            if not left:
                return drawn
            left -= 1
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
    """What is broken, without numbers, ids and lists."""
    return re.sub(r"[0-9a-f-]{8,}|[0-9]+|\[.*\]|\{.*\}", "#", broken)


def as_test(arguments: list[str], broken: str) -> str:
    """A test for test_histories.py, which fails as long as the command with these arguments finds what is broken."""
    seed, given = arguments[arguments.index("--seed") + 1], ", ".join(f'"{each}"' for each in arguments)
    return f"""
def test_history_of_seed_{seed}_keeps_every_promise() -> None:
    # {broken[:100]}
    done = simulated({given})
    assert done.returncode == 0, done.stdout + done.stderr
"""

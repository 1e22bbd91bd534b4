"""Makes a history that breaks a promise smaller: fewer actors, fewer kinds of faults, a shorter time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import product
from typing import TypeVar

from simulation.history import Drawn

Plan = TypeVar("Plan", bound=Drawn)
#: The number of histories that run for a smaller plan.
FATES = 6
#: A history shorter than this shows nothing.
LEAST_S = 1.0


def arguments_of(drawn: Plan, smaller_plan: Plan) -> list[str]:
    """Return the command line arguments that turn the drawn plan into the smaller one."""
    arguments = ["--seed", str(smaller_plan.seed)]
    if smaller_plan.acting is not None:
        arguments += ["--cast", ",".join(map(str, smaller_plan.acting))]
    if smaller_plan.length_s != drawn.length_s:
        arguments += ["--length", f"{smaller_plan.length_s:g}"]
    if smaller_plan.fate:
        arguments += ["--fate", str(smaller_plan.fate)]
    for fault in fields(drawn.faults):
        if getattr(smaller_plan.faults, fault.name) != getattr(drawn.faults, fault.name):
            arguments += ["--without", fault.name]
    return arguments


def smaller(
    drawn: Plan,
    *,
    cast: str | None = None,
    length_s: float | None = None,
    without: list[str] | None = None,
    fate: int = 0,
) -> Plan:
    """Return the plan with the changes that command line arguments request."""
    changed = replace(drawn, faults=replace(drawn.faults, **dict.fromkeys(without or (), 0.0)), fate=fate)
    if cast is not None:
        changed = replace(changed, acting=[int(number) for number in cast.split(",")])
    return changed if length_s is None else replace(changed, length_s=length_s)


def shrink(drawn: Plan, broken: str, attempt: Callable[[Plan], str | None], most: int = 300) -> Plan:
    """Return the smallest plan that breaks the same promise, after at most `most` attempts.

    `attempt` runs the history of a plan, and returns the text of the broken promise. A smaller plan draws other
    numbers, so it has another history, and several fates are tried.
    """
    is_smaller, attempts_left = True, most
    while is_smaller:
        is_smaller = False
        for fate, candidate in product(range(FATES), list(_candidates(drawn))):
            if not attempts_left:
                return drawn
            attempts_left -= 1
            candidate = replace(candidate, fate=fate or drawn.fate)
            text = attempt(candidate)
            if text is not None and _kind(text) == _kind(broken):
                drawn, is_smaller = candidate, True
                break
    return drawn


def _candidates(drawn: Plan) -> Iterator[Plan]:
    acting = list(range(len(drawn.cast))) if drawn.acting is None else list(drawn.acting)
    for number in reversed(acting) if len(acting) > 1 else ():
        yield replace(drawn, acting=[other for other in acting if other != number])
    if drawn.length_s >= 2 * LEAST_S:
        yield replace(drawn, length_s=drawn.length_s / 2)
    for fault in fields(drawn.faults):
        if fault.name != "still_s" and getattr(drawn.faults, fault.name):
            yield replace(drawn, faults=replace(drawn.faults, **{fault.name: 0.0}))


def _kind(broken: str) -> str:
    """Return the text of a broken promise without its process, values, numbers, ids, lists and details."""
    values = r"b'[^']*'|None|\(\d+, \d+\)|[0-9a-f-]{8,}|[0-9]+"
    return re.sub(rf"^\S+ ended with | ?\w*\(\w+=.*\)|{values}|\[.*\]|\{{.*\}}", "#", broken)


def as_test(arguments: list[str], broken: str) -> str:
    """Return a test for test_histories.py that fails as long as the command breaks the promise."""
    seed, quoted = arguments[arguments.index("--seed") + 1], ", ".join(f'"{argument}"' for argument in arguments)
    return f"""
def test_history_of_seed_{seed}_keeps_every_promise() -> None:
    # {broken[:100]}
    done = simulated({quoted})
    assert done.returncode == 0, done.stdout + done.stderr
"""

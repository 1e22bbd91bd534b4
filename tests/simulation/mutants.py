"""`python -m simulation.mutants N`: how many of N small changes of the library the explorer and the histories find.

A planted bug with a known seed measures memory. A mutant is new to the simulation: a changed comparison, constant,
condition or order of statements, or a removed call, in a module that carries promises. A fork replaces the code of
one function to try it. No file changes.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import importlib
import itertools
import json
import logging
import os
import resource
import signal
import sys
import time
import traceback
import types
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

#: The modules in `distlog.core` that carry promises, and the test files for their survivors.
MODULES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "commits": (
        ("commits.commit_log", "commits.snapshot_loader", "commits.checkpoint"),
        ("commits/test_commit_log*.py", "commits/test_*checkpoint*.py", "commits/test_bad_clocks.py"),
    ),
    "group commit": (
        ("commits.group_commit",),
        ("topics/test_group_commit.py", "commits/test_fairness.py"),
    ),
    "state": (
        ("commits.snapshot", "commits.partition_table", "commits.segment_table", "commits.deduplication"),
        ("commits/test_*table*.py", "commits/test_fold*.py", "commits/test_ordered_batches.py"),
    ),
    "appends": (
        ("write.append", "write.engine", "write.writer"),
        ("topics/test_append*.py", "topics/test_writer*.py", "topics/test_direct_*.py"),
    ),
    "producers": (
        ("write.producer", "log.producers", "segments.producer_states"),
        ("topics/test_*producer.py", "log/test_*producers*.py", "transactions/test_producer_states.py"),
    ),
    "active segments": (
        ("log.active_partition", "log.partition_log", "log.log_segment", "log.partition_files"),
        ("log/test_partition_*.py", "log/test_segment_*.py", "log/test_f*.py", "log/test_active_seals.py"),
    ),
    "segments": (
        ("segments.segment_reader", "segments.segment_writer", "segments.chunks", "segments.segment_parts"),
        ("segments/test_*.py", "reading/test_segment_*.py", "reading/test_slices.py"),
    ),
    "reads": (
        ("read.scan", "read.fetch", "read.lookup", "read.consumer"),
        ("reading/test_*fetch.py", "reading/test_point_read.py", "reading/test_time_*.py"),
    ),
    "groups": (
        ("read.consumer_group",),
        ("groups/test_*.py", "consuming/test_consume_groups.py", "consuming/test_consume_leases.py"),
    ),
    "compaction": (
        ("maintain.compaction", "maintain.group_rewrite", "maintain.survivors"),
        ("maintenance/test_comp*.py", "maintenance/test_clean*.py"),
    ),
    "retention": (
        ("maintain.retention", "maintain.merge_job", "maintain.restore"),
        ("maintenance/test_ret*.py", "maintenance/test_merge*.py", "maintenance/test_restore*.py"),
    ),
    "vacuum": (
        ("maintain.vacuum",),
        ("maintenance/test_vacuum*.py", "maintenance/test_log_horizon.py", "maintenance/test_obsolete_files.py"),
    ),
}
_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{
        ast.Eq: ast.NotEq,
        ast.NotEq: ast.Eq,
        ast.Is: ast.IsNot,
        ast.IsNot: ast.Is,
        ast.In: ast.NotIn,
        ast.NotIn: ast.In,
    },
}
#: A run that takes more CPU time, in s, does not end.
LONGEST_RUN_S = 20.0
#: The schedules of each scenario that show whether it executes a mutant.
_SCHEDULES = 3
TESTS = Path(__file__).parents[1]


@dataclass(slots=True)
class Mutant:
    """A change of one function: its new `code`, and its old code `marked` where the change is."""

    area: str
    module: str
    function: str
    line: int
    kind: str
    code: types.CodeType = field(repr=False)
    marked: types.CodeType = field(repr=False)
    diff: str
    #: The scenarios that execute it, and the seeds of short histories and of histories on a disk.
    scenarios: list[str] = field(default_factory=list)
    short: list[int] = field(default_factory=list)
    disk: list[int] = field(default_factory=list)
    #: The finder: explorer, short, disk or tests; empty if nothing found it.
    found_by: str = ""
    how: str = ""

    @property
    def is_executed(self) -> bool:
        return bool(self.scenarios or self.short or self.disk)

    def as_dict(self) -> dict[str, Any]:
        names = ("area", "module", "function", "line", "kind", "diff", "found_by", "how", "is_executed")
        return {name: getattr(self, name) for name in names}


class _Changes(ast.NodeVisitor):
    """The changes of a function: the kind of each, and a function that makes it in a copy of the nodes."""

    def __init__(self) -> None:
        self.changes: list[tuple[str, Callable[[dict[int, ast.AST]], None], int, ast.AST]] = []

    def _add(self, kind: str, node: ast.AST, change: Callable[[Any], None]) -> None:
        number = node.number  # type: ignore[attr-defined]
        self.changes.append((kind, lambda nodes: change(nodes[number]), number, node))

    def visit_Compare(self, node: ast.Compare) -> None:
        opposite = _OPPOSITES.get(type(node.ops[0]))
        if len(node.ops) == 1 and opposite is not None:

            def swap(copied: Any) -> None:
                copied.ops = [opposite()]

            self._add("comparison", node, swap)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if type(node.value) is int:

            def add(copied: Any) -> None:
                copied.value += 1

            self._add("constant", node, add)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call) and "_log." not in ast.unparse(node):

            def remove(copied: Any) -> None:
                copied.value = ast.copy_location(ast.Constant(None), copied)

            self._add("call", node, remove)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        for index in range(len(node.values)):

            def drop(copied: Any, index: int = index) -> None:
                del copied.values[index]
                if len(copied.values) == 1:
                    copied.values.append(copied.values[0])

            self._add("condition", node, drop)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if not (len(node.body) == 1 and isinstance(node.body[0], ast.Expr) and "_log." in ast.unparse(node.body[0])):

            def never(copied: Any) -> None:
                copied.test = ast.copy_location(ast.Constant(False), copied)

            self._add("condition", node, never)
        self.generic_visit(node)

    def visit(self, node: ast.AST) -> None:
        """Visit a node; successive statements may be swapped."""
        # the body of a match_case has no number of its own
        body = None if isinstance(node, ast.match_case) else getattr(node, "body", None)
        has_docstring = isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None
        for index in range(has_docstring, len(body) - 1) if isinstance(body, list) else ():
            pair = body[index : index + 2]
            if all(isinstance(statement, ast.Expr | ast.Assign | ast.AugAssign) for statement in pair) and any(
                isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) for statement in pair
            ):

                def swap(copied: Any, index: int = index) -> None:
                    copied.body[index : index + 2] = copied.body[index + 1], copied.body[index]

                self._add("order", node, swap)
        super().visit(node)

    def visit_Raise(self, node: ast.Raise) -> None:
        """Skip it: messages are not promises."""

    def visit_arguments(self, node: ast.arguments) -> None:
        """Skip it: defaults are not code of the function."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the outermost functions, and methods, with their qualified names."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            methods = (method for method in node.body if isinstance(method, ast.FunctionDef))
            yield from ((f"{node.name}.{method.name}", method) for method in methods)


def mutants(area: str, module: str) -> Iterator[tuple[str, Callable[[], Mutant | None]]]:
    """Yield all changes of a module with their kinds; a call makes one, unless its bytecode is the same."""
    path = Path(importlib.import_module(module).__file__ or "")
    tree = ast.parse(path.read_text())
    for name, function in _functions(tree):
        if name.rpartition(".")[2] not in ("__repr__", "__str__", "to_dict", "to_table", "_repr_html_"):
            for number, node in enumerate(_nodes(function)):
                node.number = number  # type: ignore[attr-defined]
            changes = _Changes()
            changes.visit(function)
            for kind, change, number, node in changes.changes:
                target = area, module, name, getattr(node, "lineno", 0), kind
                yield kind, partial(_mutant, target, path, function, change, number)


def _nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function that may change; Python shares other nodes."""
    return (node for node in ast.walk(function) if isinstance(node, ast.stmt | ast.expr | ast.excepthandler))


def _mutant(
    target: tuple[str, str, str, int, str],
    path: Path,
    function: ast.FunctionDef,
    change: Callable[[dict[int, ast.AST]], None],
    number: int,
) -> Mutant | None:
    changed = copy.deepcopy(function)
    change({node.number: node for node in _nodes(changed)})  # type: ignore[attr-defined]
    original, code = (_compiled(path, target[2], source) for source in (function, changed))
    diff = _diff(function, changed)
    if original is None or code is None or _same(original, code) or not diff:
        return None
    marked = copy.deepcopy(function)
    _mark({node.number: node for node in _nodes(marked)}, number)  # type: ignore[attr-defined]
    executed = _compiled(path, target[2], marked)
    return Mutant(*target, code, executed, diff) if executed is not None else None


def _compiled(path: Path, name: str, function: ast.FunctionDef) -> types.CodeType | None:
    """Compile a function alone in a module, or in a class of its name; None if that fails."""
    owner, _, _ = name.rpartition(".")
    body: ast.stmt = function
    if owner:
        body = ast.parse(f"class {owner}: pass").body[0]
        body.body = [function]  # type: ignore[attr-defined]
    module = ast.parse("from __future__ import annotations")
    module.body.append(body)
    try:
        return _code_of(compile(ast.fix_missing_locations(module), str(path), "exec"), name)
    except (SyntaxError, ValueError):
        return None


def _mark(nodes: dict[int, ast.AST], number: int) -> None:
    """Have the innermost statement with this node call `__executed__` before it."""
    parents = {id(child): node for node in ast.walk(nodes[0]) for child in ast.iter_child_nodes(node)}
    node = nodes[number]
    while not isinstance(node, ast.stmt | ast.excepthandler):
        node = parents[id(node)]
    call = ast.copy_location(ast.parse("__executed__()").body[0], node)
    if isinstance(node, ast.FunctionDef | ast.ExceptHandler):
        node.body.insert(0, call)
        return
    parent = parents[id(node)]
    for _, body in ast.iter_fields(parent):
        if isinstance(body, list) and node in body:
            body.insert(body.index(node), call)


def _code_of(code: types.CodeType, name: str) -> types.CodeType | None:
    for part in name.split("."):
        inner = [const for const in code.co_consts if isinstance(const, types.CodeType) and const.co_name == part]
        if not inner:
            return None
        code = inner[-1]
    return code


def _same(first: types.CodeType, second: types.CodeType) -> bool:
    if first.co_code != second.co_code or first.co_names != second.co_names:
        return False
    if len(first.co_consts) != len(second.co_consts):
        return False
    return all(
        _same(old, new) if isinstance(old, types.CodeType) and isinstance(new, types.CodeType) else old == new
        for old, new in zip(first.co_consts, second.co_consts, strict=True)
    )


def _diff(old: ast.AST, new: ast.AST) -> str:
    texts = (ast.unparse(ast.fix_missing_locations(tree)).splitlines() for tree in (old, new))
    lines = list(difflib.unified_diff(*texts, n=0, lineterm=""))[2:]
    return "\n".join(line for line in lines if not line.startswith("@@"))


def choose(count: int, seed: int) -> list[Mutant]:
    """Draw `count` mutants, evenly by area and kind, and at most one of each function."""
    random, chosen_mutants, functions = Random(f"mutants/{seed}"), list[Mutant](), set[tuple[str, str]]()
    for number, (area, (modules, _)) in enumerate(MODULES.items()):
        kinds = defaultdict[str, list[Callable[[], Mutant | None]]](list)
        for module in modules:
            for kind, make in mutants(area, f"distlog.core.{module}"):
                kinds[kind].append(make)
        for makers in kinds.values():
            random.shuffle(makers)
        missing = count // len(MODULES) + (number < count % len(MODULES))
        while missing and any(kinds.values()):
            kind = random.choice([kind for kind, makers in kinds.items() if makers])
            mutant = kinds[kind].pop()()
            if mutant is not None and (mutant.module, mutant.function) not in functions:
                functions.add((mutant.module, mutant.function))
                chosen_mutants.append(mutant)
                missing -= 1
    return chosen_mutants


# A fork tries a mutant.


def _replace(mutant: Mutant, code: types.CodeType) -> None:
    function: Any = sys.modules[mutant.module]
    for name in mutant.function.split("."):
        function = vars(function)[name]
    # unwrap a property, a class method or a decorator
    while not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        function = getattr(function, "fget", None) or getattr(function, "__wrapped__", None) or function.__func__
    # code without `super()` does not use the class, which the function has
    function.__code__ = code.replace(co_freevars=function.__code__.co_freevars)


def _forked(work: Callable[[], Any], limit_s: float) -> Any:
    """Return what `work` returns in a fork with a limit of CPU time; None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
            try:
                text, status = json.dumps(work()), 0
            except Exception:
                text, status = traceback.format_exc(), 1
            with open(writing, "w", encoding="utf-8") as out:
                out.write(text)
            os._exit(status)
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, encoding="utf-8") as answer:
        text = answer.read()
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise RuntimeError(f"a fork has failed:\n{text}")
    return json.loads(text) if text else None


class NoEndError(BaseException):
    """A run takes too long."""


def _run(work: Callable[[], str | None]) -> str | None:
    """Return the broken promise of a run; one without an end is broken, too."""

    def end(*_: object) -> None:
        raise NoEndError

    signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LONGEST_RUN_S)
    try:
        return work()
    except NoEndError:
        return "a run has no end"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _history(kind: Any, seed: int) -> str | None:
    error = kind.history(kind.plan(seed))[1]
    return None if error is None else f"{type(error).__name__}: {error}"[:300]


def note_executed(mutants: Sequence[Mutant], histories: int) -> None:
    from simulation.explorer import Exploration
    from simulation.kinds import ON_DISK, SCENARIOS, SHORT

    def run() -> list[list[list[Any]]]:
        executed = set[int]()
        for number, mutant in enumerate(mutants):
            module = sys.modules[mutant.module]
            mark = f"__executed_{number}__"
            setattr(module, mark, lambda number=number: executed.add(number))
            _replace(mutant, _renamed(mutant.marked, mark))
        runs: list[list[list[Any]]] = [[[], [], []] for _ in mutants]

        def note(kind: int, name: Any) -> None:
            for number in executed:
                runs[number][kind].append(name)
            executed.clear()

        for name, scenario in SCENARIOS.items():
            Exploration(scenario).run(_SCHEDULES)
            note(0, name)
        for index, (kind, count) in enumerate(((SHORT, histories), (ON_DISK, -(-histories // 3))), 1):
            for seed in range(count):
                kind.history(kind.plan(seed))
                note(index, seed)
        return runs

    for mutant, runs in zip(mutants, _forked(run, 3600.0), strict=True):
        mutant.scenarios, mutant.short, mutant.disk = runs


def _renamed(code: types.CodeType, mark: str) -> types.CodeType:
    names = tuple(mark if name == "__executed__" else name for name in code.co_names)
    consts = tuple(_renamed(const, mark) if isinstance(const, types.CodeType) else const for const in code.co_consts)
    return code.replace(co_names=names, co_consts=consts)


def attempt(mutant: Mutant, cpu_s: float) -> tuple[str, str]:
    """Return what finds the mutant first, and how; the kinds of runs share the time."""
    from simulation.kinds import ON_DISK, SHORT

    _replace(mutant, mutant.code)
    part_s = cpu_s / max(sum(map(bool, (mutant.scenarios, mutant.short, mutant.disk))), 1)
    for found_by, how in _explore(mutant.scenarios, part_s):
        return found_by, how
    for name, kind, seeds in (("short", SHORT, mutant.short), ("disk", ON_DISK, mutant.disk)):
        end_s = time.process_time() + part_s
        # first the seeds that execute it
        for seed in [*seeds, *range(1000, 100_000)] if seeds else ():
            if time.process_time() > end_s:
                break
            if broken := _run(partial(_history, kind, seed)):
                return name, f"seed {seed}: {broken}"
    return "", ""


def _explore(names: Sequence[str], cpu_s: float) -> Iterator[tuple[str, str]]:
    """Explore the scenarios in turn: first the schedule without a fault of each."""
    from simulation.explorer import Exploration
    from simulation.kinds import SCENARIOS

    def explore(exploration: Exploration, most: int) -> str | None:
        explored = exploration.run(most, end_s - time.process_time())
        return str(explored) if explored.broken is not None else None

    explorations, end_s = [Exploration(SCENARIOS[name]) for name in names], time.process_time() + cpu_s
    for most in itertools.chain([1], itertools.repeat(20)) if names else ():
        for exploration in explorations:
            if broken := _run(partial(explore, exploration, most)):
                yield "at once" if most == 1 else "explorer", broken
        if time.process_time() > end_s:
            return


def attempt_in_fork(mutant: Mutant, cpu_s: float) -> tuple[str, str]:
    found_by, how = _forked(partial(attempt, mutant, cpu_s), cpu_s + 3 * LONGEST_RUN_S) or ("explorer", "killed")
    return found_by, how


def fails_tests(mutant: Mutant) -> str:
    """Return the first failing test of the module; empty if none fails."""
    import pytest

    _replace(mutant, mutant.code)
    files = [str(path) for pattern in MODULES[mutant.area][1] for path in sorted(TESTS.glob(pattern))]
    failed = list[str]()

    class Failures:
        def pytest_runtest_logreport(self, report: Any) -> None:
            if report.failed:
                failed.append(report.nodeid)

        pytest_collectreport = pytest_runtest_logreport

    os.chdir(TESTS.parent)
    logging.disable(logging.NOTSET)
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        os.dup2(nothing.fileno(), 1)
        # the simulation has imported modules that pytest would rewrite, and hypothesis before its plugin
        quiet = ("-x", "-q", "-W", "ignore::pytest.PytestAssertRewriteWarning")
        alone = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
        status = pytest.main([*quiet, *alone, *files], plugins=[Failures()])
    if status != pytest.ExitCode.OK and not failed:
        raise RuntimeError(f"the tests of {mutant.area} did not run: {status!r}")
    return failed[0] if failed else ""


def table(entries: Sequence[dict[str, Any]]) -> str:
    """Return a row for each area: the numbers of mutants by what found them."""
    columns = {
        "not executed": "not executed",
        "at once": "found without a fault",
        "explorer": "by the explorer",
        "short": "by short histories",
        "disk": "by histories on a disk",
        "tests": "by unit tests only",
        "": "survived",
    }
    lines = [f"| module | mutants | {' | '.join(columns.values())} |", f"|{' --- |' * (2 + len(columns))}"]
    sums = Counter[str]()
    for area in MODULES:
        of_area = [entry for entry in entries if entry["area"] == area]
        counts = Counter(entry["found_by"] if entry["is_executed"] else "not executed" for entry in of_area)
        sums.update(counts)
        if of_area:
            lines.append(f"| {area} | {len(of_area)} | " + " | ".join(str(counts[name]) for name in columns) + " |")
    lines.append(f"| all | {len(entries)} | " + " | ".join(str(sums[name]) for name in columns) + " |")
    return "\n".join(lines)


def main() -> int:
    """Try mutants, and print the table and the survivors."""
    parser = argparse.ArgumentParser(prog="simulation.mutants", description=__doc__)
    parser.add_argument("count", type=int, help="how many mutants")
    parser.add_argument("--seed", type=int, default=0, help="the seed of the choice")
    parser.add_argument("--cpu", type=float, default=60.0, metavar="S", help="seconds of CPU for each")
    parser.add_argument("--tests-cpu", type=float, default=120.0, metavar="S", help="the same for a survivor's tests")
    parser.add_argument("--histories", type=int, default=20, help="the histories that show what is executed")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="try no mutant after this time")
    parser.add_argument(
        "--report", type=Path, help="a file with a line of JSON for each mutant; continues an old one"
    )
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONHASHSEED": "0"})
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    importlib.import_module("simulation.kinds")
    importlib.import_module("simulation.spark_driver")
    start_s = time.monotonic()
    mutants = choose(arguments.count, arguments.seed)
    note_executed(mutants, arguments.histories)
    entries = (
        [json.loads(line) for line in arguments.report.read_text().splitlines()]
        if arguments.report and arguments.report.exists()
        else []
    )
    for mutant in Random(arguments.seed).sample(mutants, len(mutants))[len(entries) :]:
        if time.monotonic() - start_s > 60 * arguments.minutes:
            break
        if mutant.is_executed:
            mutant.found_by, mutant.how = attempt_in_fork(mutant, arguments.cpu)
            if not mutant.found_by and arguments.tests_cpu:
                test = _forked(partial(fails_tests, mutant), arguments.tests_cpu)
                mutant.found_by, mutant.how = (
                    ("tests", test) if test else ("", "tests took too long" if test is None else "")
                )
        entries.append(mutant.as_dict())
        fate = mutant.found_by or ("survived" if mutant.is_executed else "not executed")
        print(f"{len(entries)} {mutant.module}:{mutant.line} {mutant.kind}: {fate} {mutant.how[:100]}", flush=True)
        if arguments.report:
            with arguments.report.open("a") as report:
                report.write(json.dumps(entries[-1]) + "\n")
    print(table(entries))
    for entry in entries:
        if entry["is_executed"] and not entry["found_by"]:
            print(f"\n{entry['module']}:{entry['line']} {entry['function']} ({entry['kind']})\n{entry['diff']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

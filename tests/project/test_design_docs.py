"""The pages that name modules, functions and classes cannot drift: each name is where the page says that it is."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from docs_pages import ROOT, table
from test_import_direction import CORE_LAYERS

DOCS = ROOT / "docs"
KAFKA_PAGE = "docs/design/kafka-classes.md"
KAFKA_HEADINGS = ("## Indexes", "## Logs", "## Cleaning", "## Serving")
INSIDES = ("groups-and-leases", "compaction", "adoption", "tiered-storage")
#: The classes of Kafka that must have a row.
KAFKA_CLASSES = {
    *("AbstractIndex", "LazyIndex", "OffsetIndex", "TimeIndex", "TransactionIndex", "LogSegment", "UnifiedLog"),
    *("LocalLog", "LogManager", "LogCleaner", "LogCleanerManager", "CleanerConfig", "ProducerStateManager"),
    *("LogValidator", "RequestChannel", "SocketServer", "KafkaRequestHandlerPool", "KafkaApis", "GroupCoordinator"),
    *("TransactionCoordinator", "ReplicaManager", "DelayedOperationPurgatory", "LogDirFailureChannel"),
    *("LeaderEpochFileCache", "RemoteLogManager", "DumpLogSegments", "kafka-dump-log"),
}
#: The pages that are checked, by their names from the root.
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
}

#: A span of code, one that names a file of the library, and the names that stand before `in` and such a file.
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"distlog/[\w/]+\.py")
PLACED = re.compile(r"((?:`[\w.]+`(?:,\s+(?:and\s+)?|\s+(?:and|or)\s+))*`[\w.]+`)\s+in\s+`(distlog/[\w/]+\.py)`")
#: What looks like a name of the code: a class, a method of one, or a word with an underscore inside.
NAME = re.compile(r"[A-Z]+[a-z]\w*(?:\.\w+)?|[a-z][a-z0-9]*(?:_[a-z0-9]+)+")


@cache
def defined(file: str) -> frozenset[str]:
    """The names that a file of the library defines: of its own, and as `Class.member`."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = set[str]()
    for node in tree.body:
        names |= _names_of(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for member in node.body for name in _names_of(member)}
    return frozenset(names)


def _names_of(node: ast.stmt) -> set[str]:
    """The names that one statement gives a meaning."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return set()
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


@cache
def spoken(file: str) -> frozenset[str]:
    """`defined`, and the members of classes and the arguments of functions by themselves."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return defined(file) | {name.rpartition(".")[2] for name in defined(file)} | arguments


def files_in(text: str) -> list[str]:
    """The files of the library that a text names, each once."""
    return list(dict.fromkeys(span for span in SPAN.findall(text) if FILE.fullmatch(span)))


def placed_in(text: str) -> list[tuple[str, str]]:
    """(name, file) for each name that a text puts into a file: `name` in `distlog/file.py`."""
    return [(name, file) for names, file in PLACED.findall(text) for name in SPAN.findall(names)]


def wrong_names(page: str, text: str) -> list[str]:
    """A line for each file that is not there, and each name that is not in the file that the page puts it into."""
    faults = [f"{page}: there is no file {file}" for file in files_in(text) if not (ROOT / file).is_file()]
    return faults + [
        f"{page}: {name} is not defined in {file}"
        for name, file in placed_in(text)
        if (ROOT / file).is_file() and name not in defined(file)
    ]


def unplaced_names(page: str, text: str, known_names: frozenset[str]) -> list[str]:
    """A line for each name that is in none of the files that the page names, and that is not `known` otherwise."""
    files = [file for file in files_in(text) if (ROOT / file).is_file()]
    union = known_names.union(*map(spoken, files))
    spans = dict.fromkeys(span for span in SPAN.findall(text) if NAME.fullmatch(span))
    return [f"{page}: {name} is in none of the files that the page names" for name in spans if name not in union]


@cache
def words() -> frozenset[str]:
    """The words that need no file: those of formats and of the protocol, and names that users or Kafka have."""
    import distlog
    from distlog.core import errors
    from distlog.core.config import TopicConfig

    public = {*distlog.__all__, *vars(errors), *TopicConfig.__dataclass_fields__, *dir(distlog.Topic)}
    kafka = {name for row in kafka_rows() for name in SPAN.findall(row[0])}
    return frozenset({*SPAN.findall(PAGES["docs/formats.md"]), *public, *kafka, "min_bytes", "read_committed"})


def kafka_rows() -> list[list[str]]:
    """The rows of the page about Kafka's classes."""
    return [row for heading in KAFKA_HEADINGS for row in table(PAGES[KAFKA_PAGE], heading)]


@pytest.mark.parametrize("page", PAGES)
def test_each_name_is_in_the_file_that_the_page_says(page: str) -> None:
    wrong = wrong_names(page, PAGES[page])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [f"docs/design/{name}.md" for name in INSIDES])
def test_pages_about_the_code_name_nothing_without_its_file(page: str) -> None:
    unplaced = unplaced_names(page, PAGES[page], words())
    assert not unplaced, "\n".join(unplaced)
    assert len(files_in(PAGES[page])) >= 4, "such a page leads to files"


def test_the_classes_of_kafka_lead_to_ours_and_say_what_differs() -> None:
    rows = kafka_rows()
    kafka = {name for row in rows for name in SPAN.findall(row[0])}
    assert kafka >= KAFKA_CLASSES, "classes of Kafka without a row: " + ", ".join(sorted(KAFKA_CLASSES - kafka))
    for theirs, ours, differs in rows:
        assert placed_in(ours) or ours.startswith("none"), f"{KAFKA_PAGE}: {theirs} leads to no file"
        assert differs, f"{KAFKA_PAGE}: what differs of {theirs} is not said"


def test_the_table_of_the_layout_has_every_package_from_the_bottom_up() -> None:
    rows = [SPAN.findall(row[0])[0] for row in table(PAGES["CONTRIBUTING.md"], "## Code layout")]
    packages = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "distlog").rglob("__init__.py")}
    assert sorted(rows) == sorted(packages - {"distlog"})
    height = {name: number for number, names in enumerate(CORE_LAYERS) for name in names.split()}
    heights = [height[row.split("/")[2]] for row in rows if row.startswith("distlog/core/")]
    assert heights == sorted(heights)


def test_a_name_that_moved_is_told_with_its_page_and_its_file() -> None:
    """The check itself: it sees a file that is gone, a name that moved, and a name without a file."""
    file = "distlog/core/paths.py"
    text = f"`commit_file` and `no_such_name` in `{file}`; `Gone` in `distlog/core/gone.py`; `NoSuchClass.method`"
    assert wrong_names("page.md", text) == [
        "page.md: there is no file distlog/core/gone.py",
        f"page.md: no_such_name is not defined in {file}",
    ]
    assert unplaced_names("page.md", text, frozenset()) == [
        f"page.md: {name} is in none of the files that the page names"
        for name in ("no_such_name", "Gone", "NoSuchClass.method")
    ]
    names = {"SegmentInfo", "SegmentInfo.moved_to", "SegmentInfo.stem"}
    assert names <= defined("distlog/core/commits/segment_table.py")


#: Names of other projects' code: of numba, and of a method of C++ libraries.
OTHER_NAMES = {"is_failed", "civil_from_days"}


def test_what_comments_and_docstrings_name_is_there() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "distlog").rglob("*.py")}
    names = {name for path in texts for name in (path.stem, path.parent.name)} | OTHER_NAMES
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            names.update(name for kind in ("id", "attr", "name", "arg") if (name := getattr(node, kind, None)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
                names.update(re.findall(r"\w+", node.value))
    named = {(path, name) for path, text in texts.items() for name in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", text)}
    assert len(named) > 500, "the pattern finds few names"
    assert sorted((str(path), name) for path, name in named if name not in names) == []

"""Pages that name modules, functions and classes cannot drift: each name exists in its file."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from docs_pages import ROOT, table
from test_import_direction import LAYERS

DOCS = ROOT / "docs"
KAFKA_PAGE = "docs/design/kafka-classes.md"
KAFKA_HEADINGS = ("## Indexes", "## Logs", "## Cleaning", "## Serving")
INSIDES = ("groups-and-leases", "compaction", "adoption", "tiered-storage")
KAFKA_CLASSES = {
    *("AbstractIndex", "LazyIndex", "OffsetIndex", "TimeIndex", "TransactionIndex", "LogSegment", "UnifiedLog"),
    *("LocalLog", "LogManager", "LogCleaner", "LogCleanerManager", "CleanerConfig", "ProducerStateManager"),
    *("LogValidator", "RequestChannel", "SocketServer", "KafkaRequestHandlerPool", "KafkaApis", "GroupCoordinator"),
    *("TransactionCoordinator", "ReplicaManager", "DelayedOperationPurgatory", "LogDirFailureChannel"),
    *("LeaderEpochFileCache", "RemoteLogManager", "DumpLogSegments", "kafka-dump-log"),
}
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
}

#: Code spans, paths of library files in them, and lists of names before `in` and a path.
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"distlog/[\w/]+\.py")
PLACED = re.compile(r"((?:`[\w.]+`(?:,\s+(?:and\s+)?|\s+(?:and|or)\s+))*`[\w.]+`)\s+in\s+`(distlog/[\w/]+\.py)`")
#: A likely name of the code: a class, a method of one, or a word with an underscore inside.
NAME = re.compile(r"[A-Z]+[a-z]\w*(?:\.\w+)?|[a-z][a-z0-9]*(?:_[a-z0-9]+)+")


@cache
def defined(file: str) -> frozenset[str]:
    """Return the names that a file of the library defines: its own, and members as `Class.member`."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    names = set[str]()
    for node in tree.body:
        names |= _names_of(node)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{name}" for member in node.body for name in _names_of(member)}
    return frozenset(names)


def _names_of(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if not isinstance(node, ast.Assign | ast.AnnAssign):
        return set()
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}


@cache
def spoken(file: str) -> frozenset[str]:
    """Return `defined`, members of classes alone, and arguments of functions."""
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    arguments = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    return defined(file) | {name.rpartition(".")[2] for name in defined(file)} | arguments


def files_in(text: str) -> list[str]:
    return list(dict.fromkeys(span for span in SPAN.findall(text) if FILE.fullmatch(span)))


def placed_in(text: str) -> list[tuple[str, str]]:
    """Return (name, file) for each `name` in `distlog/file.py` of a text."""
    return [(name, file) for names, file in PLACED.findall(text) for name in SPAN.findall(names)]


def wrong_names(page: str, text: str) -> list[str]:
    """Return a line for each missing file, and for each name that its file does not define."""
    faults = [f"{page}: there is no file {file}" for file in files_in(text) if not (ROOT / file).is_file()]
    return faults + [
        f"{page}: {name} is not defined in {file}"
        for name, file in placed_in(text)
        if (ROOT / file).is_file() and name not in defined(file)
    ]


def unplaced_names(page: str, text: str, known_names: frozenset[str]) -> list[str]:
    """Return a line for each name that is in no file of the page, and not otherwise known."""
    files = [file for file in files_in(text) if (ROOT / file).is_file()]
    union = known_names.union(*map(spoken, files))
    spans = dict.fromkeys(span for span in SPAN.findall(text) if NAME.fullmatch(span))
    return [f"{page}: {name} is in none of the files that the page names" for name in spans if name not in union]


@cache
def words() -> frozenset[str]:
    """Return the words without a file: of formats, of the protocol, of users and of Kafka."""
    import distlog
    from distlog.core import errors
    from distlog.core.config import TopicConfig

    public = {*distlog.__all__, *vars(errors), *TopicConfig.__dataclass_fields__, *dir(distlog.Topic)}
    kafka = {name for row in kafka_rows() for name in SPAN.findall(row[0])}
    return frozenset({*SPAN.findall(PAGES["docs/formats.md"]), *public, *kafka, "min_bytes", "read_committed"})


def kafka_rows() -> list[list[str]]:
    return [row for heading in KAFKA_HEADINGS for row in table(PAGES[KAFKA_PAGE], heading)]


@pytest.mark.parametrize("page", PAGES)
def test_each_name_is_in_its_file(page: str) -> None:
    wrong = wrong_names(page, PAGES[page])
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", [f"docs/design/{name}.md" for name in INSIDES])
def test_pages_about_the_code_name_nothing_without_its_file(page: str) -> None:
    unplaced = unplaced_names(page, PAGES[page], words())
    assert not unplaced, "\n".join(unplaced)
    assert len(files_in(PAGES[page])) >= 4, "each page leads to files"


def test_the_classes_of_kafka_have_rows_with_differences() -> None:
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
    height = {name: number for number, names in enumerate(LAYERS) for name in names.split()}
    heights = [height[row.split("/")[2]] for row in rows if row.startswith("distlog/core/")]
    assert heights == sorted(heights)


def test_a_moved_name_is_reported_with_its_page_and_its_file() -> None:
    """The check itself reports a missing file, a moved name, and a name without a file."""
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


OTHER_NAMES = {"is_failed", "civil_from_days"}


def test_names_in_comments_and_docstrings_exist() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "distlog").rglob("*.py")}
    names = {name for path in texts for name in (path.stem, path.parent.name)} | OTHER_NAMES
    for text in texts.values():
        for node in ast.walk(ast.parse(text)):
            names.update(name for kind in ("id", "attr", "name", "arg") if (name := getattr(node, kind, None)))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 80:
                names.update(re.findall(r"\w+", node.value))
    named = {(path, name) for path, text in texts.items() for name in re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", text)}
    assert len(named) > 300, "the pattern finds few names"
    assert sorted((str(path), name) for path, name in named if name not in names) == []

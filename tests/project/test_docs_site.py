"""The documentation site builds without a warning, its links are valid, and it loads nothing from the network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import distlog
from distlog.core.config import settings

pytestmark = pytest.mark.long

pytest.importorskip("mkdocs")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).parents[2]


class Page(HTMLParser):
    """The links, the loaded files and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors, self.links, self.loaded = {""}, list[str](), list[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value for name, value in attrs if value is not None}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        if tag == "a" and "href" in attributes:
            self.links.append(attributes["href"])
        elif tag != "a":
            self.loaded += [attributes[name] for name in ("src", "href") if name in attributes]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    program = "import gc\ngc.disable()\nfrom mkdocs.__main__ import cli\ncli()"
    build = [sys.executable, "-c", program, "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    run = subprocess.run(build, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Return the pages by path, without the page for missing addresses."""
    return {path: Page(path) for path in sorted(site.rglob("*.html")) if path.name != "404.html"}


def inside(pages: dict[Path, Page]) -> Iterator[tuple[Path, str, Path, str]]:
    """Return (page, address, file, anchor) of each link and each loaded file of the site."""
    for path, page in pages.items():
        for address in [*page.links, *page.loaded]:
            parts = urlsplit(address)
            if not parts.scheme:
                file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
                yield path, address, file, unquote(parts.fragment)


def test_every_link_leads_to_a_file_and_an_anchor_of_it(pages: dict[Path, Page]) -> None:
    links = list(inside(pages))
    assert len(links) > 1000
    broken = [
        (path.name, address)
        for path, address, file, anchor in links
        if not file.is_file() or (file in pages and anchor not in pages[file].anchors)
    ]
    assert broken == []


def test_no_page_loads_anything_from_the_network(site: Path, pages: dict[Path, Page]) -> None:
    assert [(path.name, link) for path, page in pages.items() for link in page.loaded if urlsplit(link).netloc] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\"' ]*", styles) == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    data = (site / "objects.inv").read_bytes()
    entries = zlib.decompress(data.split(b"zlib.\n", 1)[1]).decode()
    documented = {line.split()[0] for line in entries.splitlines()}
    assert {f"distlog.{name}" for name in distlog.__all__ if name != "__version__"} - documented == set()
    assert "distlog.Topic.scan" in documented


def test_docstring_sections_and_types_are_markup(site: Path) -> None:
    topic = (site / "reference" / "topic.html").read_text(encoding="utf-8")
    assert "Parameters:" in topic
    assert "functions.html#distlog.core.times.Time" in topic
    for path in (site / "reference").glob("*.html"):
        assert re.findall(r"(?:Args|Raises|Example):\s*$", path.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_every_command_setting_and_job_is_in_the_reference(site: Path, pages: dict[Path, Page]) -> None:
    pytest.importorskip("typer.main")
    from distlog.cli.app import COMMANDS

    text = {name: (site / "reference" / f"{name}.html").read_text(encoding="utf-8") for name in ("cli", "settings")}
    assert [name for name in COMMANDS if f">distlog {name}<" not in text["cli"]] == []
    names = text["settings"].replace("<wbr>", "")
    assert [setting.name for setting in settings() if f"<code>{setting.name}</code>" not in names] == []
    assert "<code>cleanup.<wbr>policy</code>" in text["settings"]
    jobs = pages[site / "reference" / "jobs.html"].anchors
    assert {f"jobs{path.stem}py" for path in (ROOT / "jobs").glob("*.py")} <= jobs


def test_every_page_is_in_the_navigation(site: Path, pages: dict[Path, Page]) -> None:
    home = pages[site / "index.html"]
    linked = {(site / link.split("#")[0]).resolve() for link in home.links}
    assert set(pages) <= linked | {site / "index.html"}

"""Hooks that mkdocs calls while it builds the site: adds pages that docs/ does not hold, and completes the
navigation.

Those pages are made from the code, or are files of the root.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.pages import command_page, error_page, job_page, settings_page

ROOT = Path(__file__).parents[2]


def from_root(name: str) -> str:
    """A file of the root, with its links as they are from docs/."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for root_file in ("CHANGELOG.md", "SECURITY.md"):
        text = text.replace(f"]({root_file}", f"]({root_file.lower()}")
    return text.replace("](docs/", "](")


#: The text of each page that no file in docs/ holds.
GENERATED: dict[str, Callable[[], str]] = {
    "reference/cli.md": command_page.text,
    "reference/errors.md": error_page.text,
    "reference/jobs.md": job_page.text,
    "reference/settings.md": settings_page.text,
    "changelog.md": partial(from_root, "CHANGELOG.md"),
    "contributing.md": partial(from_root, "CONTRIBUTING.md"),
    "security.md": partial(from_root, "SECURITY.md"),
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that the navigation does not name at the end of its section `How to`."""
    named = set(re.findall(r"'([^']+\.md)'", repr(config.nav)))
    pages = {path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md")}
    next(section["How to"] for section in config.nav or [] if "How to" in section).extend(sorted(pages - named))
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, text in GENERATED.items():
        files.append(File.generated(config, name, content=text()))
    return files


_ROOT_FILE = re.compile(r"(?<=\]\()\.\./((?:\.\./)*(?:CHANGELOG|CONTRIBUTING|SECURITY)\.md)")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the root, as they are from docs/, lead to their pages."""
    return _ROOT_FILE.sub(lambda link: link[1].lower(), markdown)


_CELL, _CODE = re.compile(r"<td.*?</td>", re.DOTALL), re.compile(r"(?<=<code>)[^<]+(?=</code>)")
_SEAM = re.compile(r"(?<=[a-zA-Z0-9)][._/=,-])(?=\w)")


def on_post_page(output: str, *, page: Page, config: MkDocsConfig) -> str:
    """Let the names in tables break after their dots and dashes, so that a narrow screen need not break words.

    It comes after the search has taken the words.
    """
    return _CELL.sub(lambda cell: _CODE.sub(lambda code: _SEAM.sub("<wbr>", code[0]), cell[0]), output)

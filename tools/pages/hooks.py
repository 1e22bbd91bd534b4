"""What mkdocs calls while it builds the site: adds the pages that are made from code, and from files of the root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.pages import command_page, job_page, settings_page

ROOT = Path(__file__).parents[2]

#: The text of each page that no file in docs/ holds.
GENERATED: dict[str, Callable[[], str]] = {
    "reference/cli.md": command_page.text,
    "reference/jobs.md": job_page.text,
    "reference/settings.md": settings_page.text,
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for name, text in GENERATED.items():
        files.append(File.generated(config, name, content=text()))
    return files

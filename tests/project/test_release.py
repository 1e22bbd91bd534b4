"""A release: the version is set everywhere by one command, and the workflow does what it says."""

from __future__ import annotations

import re
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from docs_pages import ROOT, read

from distlog.core import VERSION
from tools.set_version import LOCATIONS, set_version

DAY = date(2026, 3, 4)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in (*LOCATIONS, "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_one_command_sets_the_version_everywhere(project: Path) -> None:
    set_version(project, VERSION, "99.0.1", DAY)
    for name, words in LOCATIONS.items():
        text = (project / name).read_text()
        assert words.format("99.0.1") in text
        assert words.format(VERSION) not in text
    changelog = (project / "CHANGELOG.md").read_text()
    assert "\n## [Unreleased]\n\n## [99.0.1] - 2026-03-04\n\n### Added\n" in changelog
    assert changelog.count("\n### Added\n") == read("CHANGELOG.md").count("\n### Added\n")
    unreleased = (project / "CHANGELOG.md").read_text().replace("[Unreleased]\n", "[Unreleased]\n\n- More.\n")
    (project / "CHANGELOG.md").write_text(unreleased)
    set_version(project, "99.0.1", "99.1.0", DAY)
    assert (
        "\n## [Unreleased]\n\n## [99.1.0] - 2026-03-04\n\n- More.\n\n## [99.0.1] - "
        in (project / "CHANGELOG.md").read_text()
    )


def test_no_other_page_has_the_version() -> None:
    pages = {
        page.relative_to(ROOT).as_posix(): page.read_text()
        for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    }
    names = {name for name, text in pages.items() if re.search(rf"(?<![\d.]){re.escape(VERSION)}(?![\d.])", text)}
    assert names <= {*LOCATIONS, "CHANGELOG.md"}


@pytest.mark.parametrize("version", ["", "1", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "0.0.1", "1.2.3\n"])
def test_an_invalid_or_lower_version_changes_nothing(version: str, project: Path) -> None:
    old_files = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="three numbers, from "):
        set_version(project, VERSION, version, DAY)
    assert {path: path.read_text() for path in old_files} == old_files


def test_a_version_is_released_once(project: Path) -> None:
    set_version(project, VERSION, "99.0.1", DAY)
    with pytest.raises(ValueError, match=r"has 99\.0\.1 already"):
        set_version(project, "99.0.1", "99.0.1", DAY)


def test_a_version_without_a_change_is_refused(project: Path) -> None:
    set_version(project, VERSION, "99.0.1", DAY)
    old_files = {path: path.read_text() for path in project.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="nothing that is unreleased"):
        set_version(project, "99.0.1", "99.0.2", DAY)
    assert {path: path.read_text() for path in old_files} == old_files


def test_the_workflow_of_a_release_builds_twice_and_attests_what_it_publishes() -> None:
    yaml = pytest.importorskip("yaml")
    text = read(".github/workflows/release.yml")
    workflow: dict[Any, Any] = yaml.safe_load(text)
    tests, job = workflow["jobs"]["test"], workflow["jobs"]["release"]
    assert workflow["permissions"] == {"contents": "read"}
    # tests run much foreign code, so in a job that can publish nothing
    assert ("permissions" in tests, job["needs"]) == (False, "test")
    assert job["permissions"] == {"contents": "write", "id-token": "write", "attestations": "write"}
    targets = [
        re.findall(r"\bmake (\w+)", " ".join(step.get("run", "") for step in job_steps["steps"]))
        for job_steps in (tests, job)
    ]
    assert [set(job_steps) for job_steps in targets] == [{"test"}, {"dist"}]
    order = [step.get("name") or step["uses"].partition("@")[0] for step in job["steps"]]
    assert order[-3:] == ["Build twice, and compare", "actions/attest-build-provenance", "Publish"]
    assert job["steps"][-2]["with"]["subject-path"] == "dist/*"
    steps = [*tests["steps"], *job["steps"]]
    assert all(re.search(r"@v\d+$", step["uses"]) for step in steps if "uses" in step)

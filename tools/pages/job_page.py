"""The reference of the jobs for spark-submit, from their parsers."""

from __future__ import annotations

import argparse
from pathlib import Path

from distlog.jobs.__main__ import JOBS as PROGRAMS
from tools.pages.markdown import code, table

JOBS = Path(__file__).parents[2] / "jobs"

_HEAD = """# Jobs

Each runs by `spark-submit jobs/NAME.py ...`, on this machine or on a cluster. With `--json` the last line of standard
output is one JSON object. The exit status is 0 (success), 1 (the job failed), 2 (the command line was wrong) or 130
(Ctrl-C).

"""


def text() -> str:
    """The page."""
    return _HEAD + "\n".join(_section(path) for path in sorted(JOBS.glob("*.py")))


def _section(path: Path) -> str:
    parser: argparse.ArgumentParser = PROGRAMS[path.stem].parser
    rows = [_row(action) for action in parser._actions if action.dest != "help"]
    return "\n\n".join([f"## jobs/{path.name}", str(parser.description), table(["option", "meaning"], rows)])


def _row(action: argparse.Action) -> list[str]:
    metavar = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value_text = "" if action.nargs == 0 else f" {metavar}"
    required = " (required)" if action.required else ""
    return [
        code(f"{', '.join(action.option_strings)}{value_text}"),
        (action.help or "").replace("%%", "%") + required,
    ]

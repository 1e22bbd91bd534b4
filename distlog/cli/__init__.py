"""The `distlog` command.

Each command but `run` takes a topic's URL first; all take `--json`. `distlog.console.report` describes their exit
status.
"""

from __future__ import annotations

import sys
import warnings

from distlog.core.errors import DistlogError, RetentionWarning


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    try:
        from distlog.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("distlog: the command line needs typer and rich: pip install 'distlog[cli]'")
    # `append` says it in its report
    warnings.filterwarnings("ignore", category=RetentionWarning)
    try:
        app()
    except (DistlogError, OSError) as error:
        from distlog.console.report import fail

        sys.exit(fail("distlog", error, as_json="--json" in sys.argv))

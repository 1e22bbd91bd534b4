"""The `distlog` command: a topic's URL first, `--json` everywhere.

Exit status: 0 done, 1 it failed and one line on standard error says why, 2 the command line is wrong.
"""

from __future__ import annotations

import sys

from distlog.core.errors import DistlogError, InvalidConfigError


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    try:
        from distlog.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("distlog: the command line needs typer and rich: pip install 'distlog[cli]'")
    try:
        app()
    except (DistlogError, OSError) as error:
        print(f"distlog: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidConfigError) else 1)

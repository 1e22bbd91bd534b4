"""The `distlog` command.

Most commands take a topic's URL first; all take `--json`. `distlog.console.report` describes their exit status.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from distlog.console.report import INTERRUPTED, fail
from distlog.console.standard_streams import escape_what_cannot_be_encoded, open_closed_streams
from distlog.core.errors import DistlogError, RetentionWarning


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    load()()


def load() -> Callable[[], None]:
    """Import all commands; returns what runs the command line of this process, and exits with its status."""
    open_closed_streams()
    escape_what_cannot_be_encoded()
    try:
        from distlog.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit("distlog: the command line needs typer and rich: pip install 'distlog[cli]'")
    return lambda: _run(app)


def _run(app: Callable[[], None]) -> None:
    # `append` says it in its report
    warnings.filterwarnings("ignore", category=RetentionWarning)
    try:
        app()
    except (DistlogError, OSError, ModuleNotFoundError) as error:
        sys.exit(fail("distlog", error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        _tell_as_json(ended.__context__)
        raise


def _tell_as_json(wrong: BaseException | None) -> None:
    """Print what is wrong with the command line as JSON too, if that is asked for: typer told it to people."""
    if wrong is not None and "--json" in sys.argv and hasattr(wrong, "format_message"):
        from distlog.console.output import print_json

        print_json({"error": wrong.format_message(), "type": type(wrong).__name__})
        sys.stdout.flush()

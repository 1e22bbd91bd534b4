"""The `distlog` command.

Most commands take a topic's URL first; all take `--json`. `distlog.console.output` describes their exit status.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable

from distlog.console.output import INTERRUPTED, escape_what_cannot_be_encoded, fail, open_closed_streams
from distlog.core.errors import DistlogError, RetentionWarning, TimestampWarning


def main() -> None:
    """Run the command line of this process, and exit with its status."""
    load()()


def load() -> Callable[[], None]:
    """Import all commands; returns the function that runs this process's command line and exits with its status."""
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
    # the report of `append` has these warnings
    for category in (RetentionWarning, TimestampWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        app()
    except (DistlogError, OSError, ModuleNotFoundError) as error:
        sys.exit(fail("distlog", error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        _print_as_json(ended.__context__)
        raise


def _print_as_json(error: BaseException | None) -> None:
    """Print an error of the command line as JSON too, with `--json`: typer has printed it as text."""
    if error is not None and "--json" in sys.argv and hasattr(error, "format_message"):
        from distlog.console.output import print_json

        print_json({"error": error.format_message(), "type": type(error).__name__})
        sys.stdout.flush()

"""The `distlog` command.

Most commands take a topic's URL first; all take `--json`. `distlog.console.output` describes their exit status.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

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


def _run(app: Callable[..., Any]) -> None:
    # the report of `append` has these warnings
    for category in (RetentionWarning, TimestampWarning):
        warnings.filterwarnings("ignore", category=category)
    try:
        status = app(standalone_mode=False)
    except (DistlogError, OSError, ModuleNotFoundError) as error:
        sys.exit(fail("distlog", error, as_json="--json" in sys.argv))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        # typer's own, most of whose classes are private
        if hasattr(error, "format_message"):
            sys.exit(_refuse(error))
        if type(error).__name__ != "Abort":
            raise
        # it asked a question, and got no answer
        is_interrupted = isinstance(error.__context__, KeyboardInterrupt)
        sys.exit(INTERRUPTED if is_interrupted else fail("distlog", error, "aborted"))
    sys.exit(status)


def _refuse(error: Any) -> int:
    """Print on one line what is wrong with the command line; returns the exit status."""
    # the error of an option without its value has no context; the command is the first word, before all options
    command = " ".join(["distlog", *(word for word in sys.argv[1:2] if not word.startswith("-"))])
    about = error.ctx.command_path if getattr(error, "ctx", None) else command
    if not sys.argv[1:]:
        error.show()  # the help
    else:
        text = error.format_message().rstrip(".")
        fail("distlog", error, f"{text} ({about} --help)", as_json="--json" in sys.argv)
    return int(error.exit_code)

"""The `distlog` command; `distlog.console.output` describes its exit status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import Any

from distlog.console.streams import buffer_lines, escape_unencodable_text, open_closed_streams, show_warnings
from distlog.core import extra
from distlog.core.errors import DistlogError


def main() -> None:
    load()()


def load_to_stay() -> Callable[[], None]:
    """As `load`, for a process that runs only this command: exclude imported objects from garbage collection."""
    gc.disable()
    run = load()
    gc.freeze()
    # `serve` loads more, and enables garbage collection later
    if sys.argv[1:2] != ["serve"]:
        gc.enable()
    return run


def load() -> Callable[[], None]:
    """Import the command that the arguments name; return the function that runs it and exits with its status."""
    open_closed_streams()
    buffer_lines()
    escape_unencodable_text()
    try:
        from distlog.cli.app import COMMANDS, app, command

        if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
            command(sys.argv[1])
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        sys.exit(f"distlog: the command line needs typer and rich: pip install {extra('cli')}")
    return lambda: _run(app)


def _run(app: Callable[..., Any]) -> None:
    show_warnings("distlog")
    try:
        status = app(standalone_mode=False)
    except (Exception, KeyboardInterrupt) as error:
        sys.exit(_status_after(error))
    sys.exit(status)


def _status_after(error: Exception | KeyboardInterrupt) -> int:
    """Print the error, and return the exit status. Raises an unexpected error again."""
    # imported here, since `output` imports pyarrow, which `--help` does not need
    from distlog.console.output import INTERRUPTED, print_failure

    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, (DistlogError, OSError, ModuleNotFoundError)):
        return print_failure("distlog", error, as_json="--json" in sys.argv)
    # an error of typer: most of its classes are private
    if hasattr(error, "format_message"):
        return _print_usage_error(error)
    if type(error).__name__ != "Abort":
        raise error
    # typer raises Abort at the end of standard input in a prompt, and may raise it for Ctrl-C
    is_interrupted = isinstance(error.__context__, KeyboardInterrupt)
    return INTERRUPTED if is_interrupted else print_failure("distlog", error, "aborted")


def _print_usage_error(error: Any) -> int:
    # the error for an option without its value has no context: take the command from the first argument
    command = " ".join(["distlog", *(word for word in sys.argv[1:2] if not word.startswith("-"))])
    about = error.ctx.command_path if getattr(error, "ctx", None) else command
    if not sys.argv[1:]:
        error.show()  # the help
    else:
        from distlog.console.output import print_failure

        text = error.format_message().rstrip(".")
        print_failure("distlog", error, f"{text} ({about} --help)", as_json="--json" in sys.argv)
    return int(error.exit_code)

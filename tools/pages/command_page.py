"""The reference of the command line, from the typer application."""

from __future__ import annotations

from inspect import cleandoc
from typing import Any

from distlog.cli.app import COMMANDS, command
from tools.pages.markdown import code, table

_HEAD = """# Commands

The [extra](../index.md#install) `cli` brings the command `distlog`. [The command line](../command-line.md) has the
formats of its output, and the [exit statuses](../command-line.md#exit-status) 0, 1, 2, 130 and 143.

`distlog --install-completion` sets up tab completion. Credentials come from the environment, as
[S3 and other stores](../s3.md#credentials) says.

"""


def text() -> str:
    """The page."""
    return _HEAD + "\n".join(_section(name, command) for name, command in commands().items())


def commands() -> dict[str, Any]:
    """The commands by name, in the order of `distlog --help`."""
    return {name: command(name) for name in COMMANDS}


def _section(name: str, command: Any) -> str:
    context = command.make_context(f"distlog {name}", [], resilient_parsing=True)
    usage = " ".join([f"distlog {name}", *command.collect_usage_pieces(context)])
    rows = [*command.help_rows(context, "argument"), *command.help_rows(context, "option")[:-1]]
    cells = [[code(names), meaning] for names, meaning in rows]
    example = f"```sh\ndistlog {name} {COMMANDS[name].example}\n```"
    parts = [f"## distlog {name}", f"```\n{usage}\n```", cleandoc(command.help or ""), example]
    return "\n\n".join([*parts, table(["argument or option", "meaning"], cells)])

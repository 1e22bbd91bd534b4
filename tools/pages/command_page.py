"""The reference of the command line, from the typer application."""

from __future__ import annotations

import re
from inspect import cleandoc
from typing import Any

from distlog.cli.app import COMMANDS, command
from tools.pages.markdown import code, table

#: What the framework says of an argument's type, behind its name.
_KIND = re.compile(r" <(str|path)>$")
_NO_BRACES = str.maketrans("", "", "{}")

_HEAD = """# Commands

The [extra](../index.md#install) `cli` brings the command `distlog`. [The command line](../command-line.md) has the
formats of its output, and what the [exit statuses](../command-line.md#exit-status) 0, 1, 2, 130 and 143 mean.

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
    pieces = command.collect_usage_pieces(context)
    usage = " ".join([f"distlog {name}", *pieces]).translate(_NO_BRACES).replace("[[", "[").replace("]]", "]")
    records = [each.get_help_record(context) for each in command.params]
    rows = [[code(_KIND.sub("", names)), meaning] for names, meaning in filter(None, records)]
    parts = [f"## distlog {name}", f"```\n{usage}\n```", cleandoc(command.help or "")]
    return "\n\n".join([*parts, table(["argument or option", "meaning"], rows)])

"""All commands of the command line. A command's module is imported when the command runs or prints its help."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from distlog import __version__


class Help(NamedTuple):
    """The module of a command in distlog.cli, the first sentence of its docstring, and example arguments."""

    module: str
    sentence: str
    example: str


_TOPIC, _RECORDS, _MAINTENANCE = "topic_commands", "record_commands", "maintenance_commands"
_SERVICE = "service_commands"
#: The commands by the section of `--help` that lists them.
PANELS = {
    "Topics": {
        "create": Help(_TOPIC, "Create a topic.", "logs/clicks --partitions 4"),
        "list": Help(_TOPIC, "List the topics in a folder.", "s3://bucket/logs"),
        "describe": Help(_TOPIC, "Show partitions and settings.", "logs/clicks --json"),
        "alter": Help(
            _TOPIC, "Change settings, add partitions, or assign an id.", "logs/clicks --config retention.ms=-1"
        ),
        "drop": Help(_TOPIC, "Delete a topic.", "logs/clicks --yes"),
        "segments": Help(_TOPIC, "List the segments.", "logs/clicks"),
        "history": Help(_TOPIC, "List the commits, newest first.", "logs/clicks --limit 10"),
        "offsets": Help(
            _TOPIC, "Show start and end offsets, or find the offsets of a time.", "logs/clicks --time -1h"
        ),
    },
    "Records": {
        "append": Help(_RECORDS, "Append files in one commit, or a stream.", "logs/clicks events.jsonl --key user"),
        "read": Help(_RECORDS, "Print records.", "logs/clicks --since -1h --follow"),
        "sql": Help(_RECORDS, "Run a query of SQL over topics.", "logs 'SELECT count(*) FROM clicks'"),
        "groups": Help(
            _TOPIC, "Show, reset or delete consumer groups.", "logs/clicks --group billing --reset earliest"
        ),
        "delete-records": Help(_MAINTENANCE, "Delete the records before an offset.", "logs/clicks --before 0:100"),
        "restore": Help(_TOPIC, "Restore deleted records.", "logs/clicks --version 12 --dry-run"),
    },
    "Maintenance": {
        "retention": Help(
            _MAINTENANCE, "Delete segments past retention.ms or retention.bytes.", "logs/clicks --dry-run"
        ),
        "compact": Help(_MAINTENANCE, "Keep the last record of each key, or merge small segments.", "logs/clicks"),
        "vacuum": Help(_MAINTENANCE, "Delete files that nothing refers to.", "logs/clicks --dry-run"),
        "verify": Help(_MAINTENANCE, "Check every checksum, record, index and commit.", "logs/clicks"),
        "rebuild-index": Help(_MAINTENANCE, "Rebuild bad and missing indexes from the logs.", "logs/clicks"),
        "repair": Help(_MAINTENANCE, "Truncate damaged active segments.", "logs/clicks --dry-run"),
        "check-store": Help(_MAINTENANCE, "Check that a store can hold topics, and measure it.", "s3://bucket/logs"),
        "doctor": Help(_MAINTENANCE, "Check this machine, and a store.", "s3://bucket/logs"),
    },
    "Kafka": {
        "adopt": Help(_TOPIC, "Import Kafka log directories as topics.", "/var/kafka-logs --to logs"),
        "export": Help(_TOPIC, "Write a topic as a Kafka log directory.", "logs/clicks /var/kafka-logs"),
        "dump": Help(_RECORDS, "Print the contents of Kafka's files.", "00000000000000000000.log --print-data-log"),
        "transactions": Help(_TOPIC, "List open transactions, or abort hanging ones.", "logs/clicks --hanging"),
    },
    "Services": {
        "run": Help(_SERVICE, "Maintain all topics in a folder until SIGTERM.", "--root s3://bucket/logs"),
        "serve": Help(
            _SERVICE, "Serve the topics in a folder to Kafka clients.", "--root logs --listen 127.0.0.1:9092"
        ),
        "users": Help(_SERVICE, "Show and change the users of a gateway.", "users.json --set ann"),
        "warmup": Help(_SERVICE, "Compile distlog's kernels ahead of time.", "--json"),
    },
}
COMMANDS = {name: help_ for panel in PANELS.values() for name, help_ in panel.items()}

#: Each command needs them, too: Click makes its help option once, and may not have the program's context then.
_SETTINGS = {"help_option_names": ["-h", "--help"]}
_HELP = "Kafka topics without a broker: partitioned logs in Apache Kafka's file formats, in a folder or a bucket."
#: The type that typer shows after an argument's name.
_TYPE = re.compile(r" <(?:str|path|list\[str\])>$")
_NO_BRACES = str.maketrans("", "", "{}")


class _Command(TyperCommand):
    """A command whose help shows names without the types and braces that typer adds."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [word.translate(_NO_BRACES) for word in super().collect_usage_pieces(ctx)]

    def help_rows(self, ctx: Any, kind: str) -> list[tuple[str, str]]:
        """Return names and meanings of the parameters of a kind, "argument" or "option"."""
        params = [param for param in self.get_params(ctx) if param.param_type_name == kind]
        records = filter(None, [param.get_help_record(ctx) for param in params])
        return [(_TYPE.sub("", name), meaning) for name, meaning in records]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for title in ("Arguments", "Options"):
            if rows := self.help_rows(ctx, title[:-1].lower()):
                with formatter.section(title):
                    formatter.write_dl(rows)


class _Group(TyperGroup):
    """A group of placeholders with names and sentences. A command is imported when it runs or prints its help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, arguments = super().resolve_command(ctx, args)
        return name, (command(str(name)) if placeholder else None), arguments

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, commands in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, help_.sentence) for name, help_ in commands.items()])


@cache
def command(name: str) -> Any:
    """Return a command with its options. The import of its module may take a second."""
    help_ = COMMANDS[name]
    # functions are named as their commands, except `list`, which would hide the builtin
    function = "list_topics" if name == "list" else name.replace("-", "_")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    epilog = f"\b\nExample:\n  distlog {name} {help_.example}"
    register = single.command(name, cls=_Command, context_settings=_SETTINGS, epilog=epilog)
    register(getattr(import_module(f"distlog.cli.{help_.module}"), function))
    return get_command(single)


app = typer.Typer(
    name="distlog",
    cls=_Group,
    no_args_is_help=True,
    context_settings=_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help=_HELP,
)
for _name, _text in COMMANDS.items():
    app.command(_name, help=_text.sentence)(lambda: None)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"distlog {__version__}")
        raise typer.Exit


@app.callback(help=_HELP)
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""

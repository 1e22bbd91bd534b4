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


class CommandText(NamedTuple):
    """A command's function in distlog.cli, the first sentence of its docstring, and an example of its arguments."""

    function: str
    sentence: str
    example: str


#: The commands by the section of `--help` that lists them.
PANELS = {
    "Topics": {
        "create": CommandText("topic_commands.create", "Create a topic.", "logs/clicks --partitions 4"),
        "list": CommandText("topic_commands.list_topics", "List the topics in a folder.", "s3://bucket/logs"),
        "describe": CommandText("topic_commands.describe", "Show partitions and settings.", "logs/clicks --json"),
        "alter": CommandText(
            "topic_commands.alter",
            "Change settings, add partitions, or assign an id.",
            "logs/clicks --config retention.ms=-1",
        ),
        "drop": CommandText("topic_commands.drop", "Delete a topic.", "logs/clicks --yes"),
        "segments": CommandText("topic_commands.segments", "List the segments.", "logs/clicks"),
        "history": CommandText("topic_commands.history", "List the commits, newest first.", "logs/clicks --limit 10"),
        "offsets": CommandText(
            "topic_commands.offsets",
            "Show start and end offsets, or find the offsets of a time.",
            "logs/clicks --time -1h",
        ),
    },
    "Records": {
        "append": CommandText(
            "record_commands.append",
            "Append files in one commit, or a stream.",
            "logs/clicks events.jsonl --key user",
        ),
        "read": CommandText("record_commands.read", "Print records.", "logs/clicks --since -1h --follow"),
        "groups": CommandText(
            "topic_commands.groups",
            "Show, reset or delete consumer groups.",
            "logs/clicks --group billing --reset earliest",
        ),
        "delete-records": CommandText(
            "maintenance_commands.delete_records",
            "Delete the records before an offset.",
            "logs/clicks --before 0:100",
        ),
        "restore": CommandText(
            "topic_commands.restore", "Restore deleted records.", "logs/clicks --version 12 --dry-run"
        ),
    },
    "Maintenance": {
        "retention": CommandText(
            "maintenance_commands.retention",
            "Delete segments past retention.ms or retention.bytes.",
            "logs/clicks --dry-run",
        ),
        "compact": CommandText(
            "maintenance_commands.compact",
            "Keep the last record of each key, or merge small segments.",
            "logs/clicks",
        ),
        "vacuum": CommandText(
            "maintenance_commands.vacuum", "Delete files that nothing refers to.", "logs/clicks --dry-run"
        ),
        "verify": CommandText(
            "maintenance_commands.verify", "Check every checksum, record, index and commit.", "logs/clicks"
        ),
        "rebuild-index": CommandText(
            "maintenance_commands.rebuild_index", "Rebuild bad and missing indexes from the logs.", "logs/clicks"
        ),
        "repair": CommandText(
            "maintenance_commands.repair", "Truncate damaged active segments.", "logs/clicks --dry-run"
        ),
        "check-store": CommandText(
            "maintenance_commands.check_store",
            "Check that a store can hold topics, and measure it.",
            "s3://bucket/logs",
        ),
        "doctor": CommandText("maintenance_commands.doctor", "Check this machine, and a store.", "s3://bucket/logs"),
    },
    "Kafka": {
        "adopt": CommandText(
            "topic_commands.adopt", "Import Kafka log directories as topics.", "/var/kafka-logs --to logs"
        ),
        "export": CommandText(
            "topic_commands.export", "Write a topic as a Kafka log directory.", "logs/clicks /var/kafka-logs"
        ),
        "dump": CommandText(
            "record_commands.dump",
            "Print the contents of Kafka's files.",
            "00000000000000000000.log --print-data-log",
        ),
        "transactions": CommandText(
            "topic_commands.transactions", "List open transactions, or abort hanging ones.", "logs/clicks --hanging"
        ),
    },
    "Services": {
        "run": CommandText(
            "service_commands.run", "Maintain all topics in a folder until SIGTERM.", "--root s3://bucket/logs"
        ),
        "serve": CommandText(
            "service_commands.serve",
            "Serve the topics in a folder to Kafka clients.",
            "--root logs --listen 127.0.0.1:9092",
        ),
        "users": CommandText(
            "service_commands.users", "Show and change the users of a gateway.", "users.json --set ann"
        ),
        "warmup": CommandText("service_commands.warmup", "Compile distlog's kernels ahead of time.", "--json"),
    },
}
COMMANDS = {name: text for panel in PANELS.values() for name, text in panel.items()}

#: click keeps the names of the help option from the first time that a command is asked for its options.
_SETTINGS = {"help_option_names": ["-h", "--help"]}
_HELP = "Kafka topics without a broker: partitioned logs in Apache Kafka's file formats, in a folder or a bucket."
#: typer's type of an argument, after the argument's name.
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
    """A group whose commands are names and sentences until they run or print their help."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, arguments = super().resolve_command(ctx, args)
        return name, placeholder and command(str(name)), arguments

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, texts in PANELS.items():
            with formatter.section(panel):
                formatter.write_dl([(name, text.sentence) for name, text in texts.items()])


@cache
def command(name: str) -> Any:
    """Return a command with its options. Most take a second to import."""
    text = COMMANDS[name]
    module, function = text.function.split(".")
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    epilog = f"\b\nExample:\n  distlog {name} {text.example}"
    register = single.command(name, cls=_Command, context_settings=_SETTINGS, epilog=epilog)
    register(getattr(import_module(f"distlog.cli.{module}"), function))
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

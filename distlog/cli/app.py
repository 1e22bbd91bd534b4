"""All commands of the command line. A command's module is imported when it is run, or asked for its options."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from distlog import __version__

#: The commands in the order of `--help`: the function of each in distlog.cli, and its docstring's first sentence.
COMMANDS = {
    "create": ("topic_commands.create", "Create a topic."),
    "list": ("topic_commands.list_topics", "List the topics right below a folder."),
    "alter": ("topic_commands.alter", "Change settings, the number of partitions, and the id."),
    "drop": ("topic_commands.drop", "End a topic."),
    "describe": ("topic_commands.describe", "Show the partitions and the settings."),
    "segments": ("topic_commands.segments", "List the live segments, by partition and offset."),
    "history": ("topic_commands.history", "List the commits, newest first."),
    "offsets": ("topic_commands.offsets", "Show where partitions begin and end, or offsets of a time."),
    "append": ("record_commands.append", "Append files in one commit, or a stream as it comes."),
    "read": ("record_commands.read", "Print records."),
    "groups": ("topic_commands.groups", "Show the positions of groups of followers, or change them."),
    "retention": ("maintenance_commands.retention", "Delete old segments, by retention.ms and retention.bytes."),
    "delete-records": ("maintenance_commands.delete_records", "Delete the records below an offset."),
    "restore": ("topic_commands.restore", "Bring back the records of an earlier version."),
    "compact": ("maintenance_commands.compact", "Keep the last record of each key, or merge small segments."),
    "vacuum": ("maintenance_commands.vacuum", "Delete files that no reader or writer can need."),
    "rebuild-index": ("maintenance_commands.rebuild_index", "Rebuild bad and missing index files from the logs."),
    "verify": ("maintenance_commands.verify", "Check every checksum, record, index entry and commit."),
    "repair": ("maintenance_commands.repair", "Cut off damage that makes active segments refuse appends."),
    "dump": ("record_commands.dump", "Print the content of Kafka's files, like kafka-dump-log."),
    "adopt": ("topic_commands.adopt", "Make topics of the log directories of Kafka brokers."),
    "export": ("topic_commands.export", "Write a topic as files that a Kafka broker opens."),
    "transactions": ("topic_commands.transactions", "List open transactions of a topic, or abort hanging ones."),
    "run": ("service_commands.run", "Maintain all topics below some roots, until SIGTERM."),
    "serve": ("service_commands.serve", "Let Kafka's clients use the topics below a root."),
    "users": ("service_commands.users", "Show and change the users of a gateway."),
    "check-store": ("maintenance_commands.check_store", "Check that a storage can hold a topic, and how fast it is."),
    "doctor": ("doctor.doctor", "Look for what is wrong with this machine, or with a store."),
    "warmup": ("service_commands.warmup", "Compile distlog's kernels ahead of time."),
}


#: Each command has them too: click keeps the names of the first time that a command is asked for its options.
_SETTINGS = {"help_option_names": ["-h", "--help"]}


class _Group(TyperGroup):
    """Its commands are names and sentences, until one of them is run, or asked for its options."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the first of `args` names, and its own arguments."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and command(str(name)), rest


@cache
def command(name: str) -> Any:
    """A command with its options, made once in a process. Most take a second to import."""
    module, function = COMMANDS[name][0].split(".")
    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, context_settings=_SETTINGS)(getattr(import_module(f"distlog.cli.{module}"), function))
    return get_command(alone)


app = typer.Typer(
    name="distlog",
    cls=_Group,
    no_args_is_help=True,
    context_settings=_SETTINGS,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Partitioned logs in Apache Kafka's file formats, on local disk or object storage, with no broker.",
)
for _name, (_, _sentence) in COMMANDS.items():
    app.command(_name, help=_sentence)(lambda: None)


def _print_version(is_set: bool) -> None:
    if is_set:
        typer.echo(f"distlog {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Partitioned logs in Apache Kafka's file formats, on local disk or object storage, with no broker."""

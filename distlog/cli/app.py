"""All commands of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from distlog import __version__
from distlog.cli.commands import (
    append_command,
    dump_command,
    group_commands,
    kafka_commands,
    maintenance_commands,
    metadata_commands,
    read_command,
    serve_command,
    service_command,
    topic_commands,
    users_command,
    warmup_command,
)

app = typer.Typer(
    name="distlog",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Partitioned logs in Apache Kafka's file formats, on local disk or object storage, with no broker.",
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"distlog {__version__}")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version, and end.")
    ] = False,
) -> None:
    """Partitioned logs in Apache Kafka's file formats, on local disk or object storage, with no broker."""


app.command()(metadata_commands.create)
app.command("list")(topic_commands.list_topics)
app.command()(topic_commands.alter)
app.command()(topic_commands.drop)
app.command()(metadata_commands.describe)
app.command()(metadata_commands.segments)
app.command()(metadata_commands.history)
app.command()(metadata_commands.offsets)
app.command()(append_command.append)
app.command()(read_command.read)
app.command()(group_commands.groups)
app.command()(maintenance_commands.retention)
app.command()(maintenance_commands.delete_records)
app.command()(topic_commands.restore)
app.command()(maintenance_commands.compact)
app.command()(maintenance_commands.vacuum)
app.command()(maintenance_commands.rebuild_index)
app.command()(maintenance_commands.verify)
app.command()(dump_command.dump)
app.command()(kafka_commands.adopt)
app.command()(kafka_commands.export)
app.command()(service_command.run)
app.command()(serve_command.serve)
app.command()(users_command.users)
app.command()(warmup_command.warmup)

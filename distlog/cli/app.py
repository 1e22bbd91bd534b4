"""All commands of the command line."""

from __future__ import annotations

from typing import Annotated

import typer

from distlog import __version__
from distlog.cli import doctor, maintenance_commands, record_commands, service_commands, topic_commands

app = typer.Typer(
    name="distlog",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Partitioned logs in Apache Kafka's file formats, on local disk or object storage, with no broker.",
)


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


app.command()(topic_commands.create)
app.command("list")(topic_commands.list_topics)
app.command()(topic_commands.alter)
app.command()(topic_commands.drop)
app.command()(topic_commands.describe)
app.command()(topic_commands.segments)
app.command()(topic_commands.history)
app.command()(topic_commands.offsets)
app.command()(record_commands.append)
app.command()(record_commands.read)
app.command()(topic_commands.groups)
app.command()(maintenance_commands.retention)
app.command()(maintenance_commands.delete_records)
app.command()(topic_commands.restore)
app.command()(maintenance_commands.compact)
app.command()(maintenance_commands.vacuum)
app.command()(maintenance_commands.rebuild_index)
app.command()(maintenance_commands.verify)
app.command()(maintenance_commands.repair)
app.command()(record_commands.dump)
app.command()(topic_commands.adopt)
app.command()(topic_commands.export)
app.command()(topic_commands.transactions)
app.command()(service_commands.run)
app.command()(service_commands.serve)
app.command()(service_commands.users)
app.command()(maintenance_commands.check_store)
app.command()(doctor.doctor)
app.command()(service_commands.warmup)

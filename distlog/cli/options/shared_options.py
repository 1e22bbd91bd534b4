"""The arguments and options that several commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

import distlog
from distlog.console import arguments
from distlog.core.paths import COMMITS_DIR

T = TypeVar("T")


def usage(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Wraps `parse` for typer: its ValueError becomes an error of the command line."""

    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None

    return parsed


def settings(name: str, about: str) -> Any:
    """An option NAME=VALUE that may be repeated."""
    return typer.Option(
        name,
        metavar="NAME=VALUE",
        parser=usage(arguments.setting),
        default_factory=list,
        show_default=False,
        help=f"{about} May be repeated.",
    )


def time(about: str) -> Any:
    """An option whose value is a time that a record may have."""
    return typer.Option(metavar="TIME", parser=usage(arguments.record_time), help=about)


def _topics(incomplete: str) -> list[str]:
    """Completes the path of a topic on a local disk: topics, and folders that may hold some."""
    folder, start = os.path.split(incomplete)
    try:
        found = [each for each in os.scandir(folder or ".") if each.name.startswith(start) and each.is_dir()]
    except OSError:
        return []
    paths = [os.path.join(folder, each.name) for each in found if start or not each.name.startswith(".")]
    return sorted(path if os.path.isdir(os.path.join(path, COMMITS_DIR)) else f"{path}/" for path in paths)


Url = Annotated[
    str,
    typer.Argument(
        metavar="URL", help="The path or URL of the topic, as in s3://bucket/logs/clicks.", autocompletion=_topics
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; only print what would be done.")]
Storage = Annotated[list[Any], settings("--storage", "A setting of the storage client, as in endpoint_url=URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AtVersion = Annotated[
    int | None,
    typer.Option("--version", metavar="N", parser=usage(arguments.version), help="As it was at version N."),
]
AtTime = Annotated[
    int | None,
    typer.Option("--timestamp", metavar="TIME", parser=usage(arguments.time), help="As it was at TIME."),
]


def open_at(url: str, version: int | None, timestamp: int | None, storage: list[Any]) -> distlog.Topic:
    """The topic now, or read-only at a version or a time. Raises BadParameter for both."""
    if version is not None and timestamp is not None:
        raise typer.BadParameter("give a version or a time, not both", param_hint="--timestamp")
    return distlog.open(url, version, timestamp, dict(storage))

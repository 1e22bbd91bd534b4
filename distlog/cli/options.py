"""The arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from distlog.console import arguments

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
    parse = usage(arguments.setting)
    return typer.Option(
        name, metavar="NAME=VALUE", parser=parse, default_factory=list, show_default=False, help=about
    )


def time(about: str) -> Any:
    """An option whose value is a time that a record may have."""
    return typer.Option(metavar="TIME", parser=usage(arguments.record_time), help=about)


Url = Annotated[str, typer.Argument(metavar="URL", help="The topic's path or URL, as in s3://bucket/logs/clicks.")]
Storage = Annotated[list[Any], settings("--storage", "A setting of the storage's client, as in endpoint_url=URL.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

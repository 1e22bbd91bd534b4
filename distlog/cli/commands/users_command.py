"""`distlog users`: who may connect to a gateway."""

from __future__ import annotations

import getpass
import os
import sys
from typing import Annotated

import typer

from distlog.cli.options.shared_options import Json
from distlog.console.report import Summary, print_report
from distlog.core.errors import InvalidConfigError
from distlog.gateway.security.scram_secret import new_secrets
from distlog.gateway.security.users import check_name
from distlog.gateway.security.users_file import read_users, write_users


def users(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file of users; --set makes it if there is none.")],
    *,
    name: Annotated[
        str | None, typer.Option("--set", metavar="NAME", help="Add a user, or give one another password.")
    ] = None,
    delete: Annotated[str | None, typer.Option(metavar="NAME", help="Forget a user, who is disconnected.")] = None,
    as_json: Json = False,
) -> None:
    """Show and change the users of a gateway.

    A password is asked for twice, or is the line on standard input. Only hashes of it are kept. A gateway sees a
    change within a second.
    """
    if name is not None and delete is not None:
        raise typer.BadParameter("give --set or --delete, not both", param_hint="--delete")
    if name is not None:
        secrets = new_secrets(_password(check_name(name)), os.urandom)
        write_users(file, lambda found: found.with_user(name, secrets))
        print_report(Summary(f"set {name}", {"user": name, "set": True}), as_json=as_json)
    elif delete is not None:
        read_users(file)
        write_users(file, lambda found: found.without_user(delete))
        print_report(Summary(f"deleted {delete}", {"user": delete, "deleted": True}), as_json=as_json)
    else:
        names = sorted(read_users(file).secrets)
        print_report(Summary("\n".join(names), {"users": names}), as_json=as_json)


def _password(name: str) -> str:
    """The password, from a terminal without echo, or from standard input. Raises InvalidConfigError."""
    if sys.stdin.isatty():
        password = getpass.getpass(f"password of {name}: ")
        if getpass.getpass("again: ") != password:
            raise InvalidConfigError("the two passwords differ")
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if not password:
        raise InvalidConfigError("a password must not be empty")
    if "\0" in password:
        raise InvalidConfigError("a password must not have the character 0: SASL could not send it")
    return password

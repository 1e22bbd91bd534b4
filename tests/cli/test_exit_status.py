"""Every command ends with the exit status of one table, which docs/command-line.md shows."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from pathlib import Path

import pytest
from command_line import CommandLine, Outcome
from docs_pages import read, table

import distlog
from distlog.cli.app import COMMANDS, command
from distlog.console import output
from distlog.core.storage.storage import Storage
from tools.pages import command_page

#: The arguments of each command; MISSING is a path without a file.
ARGUMENTS = {
    "create": "MISSING/clicks",
    "list": "MISSING",
    "alter": "MISSING --config retention.ms=1",
    "drop": "MISSING --yes",
    "describe": "MISSING",
    "segments": "MISSING",
    "history": "MISSING",
    "offsets": "MISSING",
    "append": "MISSING FILE",
    "read": "MISSING",
    "sql": "MISSING VALUES(1)",
    "groups": "MISSING",
    "retention": "MISSING",
    "delete-records": "MISSING --before 0:1",
    "restore": "MISSING --version 0",
    "compact": "MISSING",
    "vacuum": "MISSING",
    "rebuild-index": "MISSING",
    "verify": "MISSING",
    "repair": "MISSING",
    "transactions": "MISSING",
    "dump": "MISSING.log",
    "adopt": "MISSING",
    "export": "MISSING FOLDER",
    "run": "--root MISSING --once",
    "serve": "--root memory://MISSING --listen 127.0.0.1:1",
    "users": "MISSING",
    "warmup": "",
    "check-store": "MISSING",
    "doctor": "MISSING",
}
#: Commands that create a missing topic or file.
MAKERS = {"create", "serve", "warmup", "check-store", "doctor"}


def run(cli: CommandLine, name: str, *more: str) -> Outcome:
    folder = Path(cli.url).parent
    (folder / "file").write_text("a line\n")
    words = shlex.split(ARGUMENTS[name])
    paths = {"MISSING": str(folder / "missing"), "FILE": str(folder / "file"), "FOLDER": str(folder / "new")}
    for word, path in paths.items():
        words = [template.replace(word, path) for template in words]
    return cli.bare(name, *words, *more)


def test_every_command_has_arguments_here() -> None:
    assert set(ARGUMENTS) == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_sentence_of_each(name: str) -> None:
    assert command(name).help.partition("\n\n")[0].replace("\n", " ") == COMMANDS[name][1]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_option_is_2(cli: CommandLine, name: str) -> None:
    outcome = run(cli, name, "--no-such-option")
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (output.WRONG_USAGE, "", 1)
    assert "option: --no-such-option" in outcome.err
    assert outcome.err.endswith(f" {name} --help)\n")


@pytest.mark.parametrize("template", ["read", "read URL --limit x", "read URL more", "no-such-command"])
def test_a_wrong_command_line_is_one_line_and_one_json_object(cli: CommandLine, template: str) -> None:
    outcome = cli.bare(*template.split(), "--json")
    assert (outcome.status, outcome.err.count("\n")) == (output.WRONG_USAGE, 1)
    assert outcome.err == f"distlog: {outcome.json['error']}\n"


@pytest.mark.parametrize("name", ARGUMENTS)
def test_help_is_0(cli: CommandLine, name: str) -> None:
    assert cli.bare(name, "--help").status == output.SUCCESS


@pytest.mark.parametrize("name", sorted(set(ARGUMENTS) - MAKERS))
def test_a_missing_topic_is_1(cli: CommandLine, name: str) -> None:
    outcome = run(cli, name, "--json")
    assert (outcome.status, outcome.err.count("\n")) == (output.FAILED, 0 if name == "dump" else 1)


OTHER_COMMANDS = MAKERS | {"list", "append", "dump", "adopt", "run", "sql", "users"}


@pytest.mark.parametrize("name", [*sorted(set(ARGUMENTS) - OTHER_COMMANDS), "append"])
def test_a_folder_of_topics_is_1_and_its_topics_are_named(cli: CommandLine, name: str) -> None:
    for topic in ("views", "clicks"):
        distlog.create(f"{Path(cli.url).parent}/missing/{topic}")
    (Path(cli.url).parent / "missing" / "another").mkdir()
    distlog.create(f"{Path(cli.url).parent}/missing/dropped").drop()
    (Path(cli.url).parent / "missing" / "\x1b[2Ja" / "_commits").mkdir(parents=True)
    outcome = run(cli, name)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (output.FAILED, "", 1)
    assert "this is not a topic, but a folder of topics: add the name of one: clicks, views (url=" in outcome.err


@pytest.mark.parametrize("name", sorted(set(ARGUMENTS) - {"users", "warmup"}))
def test_ctrl_c_is_130_and_quiet(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Storage, "__init__", interrupted)
    assert run(cli, name) == (output.INTERRUPTED, "", "")


@pytest.mark.parametrize(
    ("command", "arguments", "stdin"),
    [
        ("append", "--format csv --key b", b"a\n1\n"),
        ("append", "--format csv", b"a,a\n1,2\n"),
        ("append", "--format jsonl", b"[1]\n"),
        ("append", "--partition 7", b"v\n"),
        ("read", "--partition 7", b""),
        ("read", "--offset 7", b""),
        ("read", "--version 7", b""),
        ("groups", "--group nobody", b""),
        ("groups", "--group nobody --delete", b""),
        ("groups", "--group mine --from-kafka nobody", b""),
        ("transactions", "--abort 0:0", b""),
        ("delete-records", "--before 0:7", b""),
        ("restore", "--version 7", b""),
        ("create", "", b""),
    ],
)
def test_missing_records_and_bad_data_are_1(cli: CommandLine, command: str, arguments: str, stdin: bytes) -> None:
    distlog.create(cli.url)
    outcome = cli(command, *arguments.split(), stdin=stdin)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (output.FAILED, "", 1)


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("create", "--config retention.millis=1"),
        ("create", "--config retention.ms=x"),
        ("create", "--partitions 2000000000"),
        ("alter", ""),
        ("read", "--format json --offset 1 --tail 1"),
        ("append", "--compression best"),
        ("groups", "--delete"),
    ],
)
def test_a_setting_that_no_topic_accepts_is_2(cli: CommandLine, command: str, arguments: str) -> None:
    if command != "create":
        distlog.create(cli.url)
    assert cli(command, *arguments.split(), stdin=b"v\n").status == output.WRONG_USAGE


@pytest.mark.parametrize("option", ["endpoint=http://127.0.0.1:9", "nosuch=x", "client_kwargs=x"])
@pytest.mark.parametrize("words", ["describe s3://bucket/clicks", "list s3://bucket", "serve --root s3://bucket"])
def test_a_storage_option_that_the_client_does_not_have_is_2(cli: CommandLine, words: str, option: str) -> None:
    pytest.importorskip("s3fs")
    outcome = cli.bare(*words.split(), "--storage", option)
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (output.WRONG_USAGE, "", 1)
    assert option.partition("=")[0] in outcome.err


@pytest.mark.parametrize("options", ["--ssl-certfile FILE --ssl-keyfile FILE", "--sasl-users FILE"])
@pytest.mark.parametrize("text", [None, "not a certificate, not users"])
def test_a_file_of_a_gateway_that_is_missing_or_bad_is_1(
    cli: CommandLine, tmp_path: Path, options: str, text: str | None
) -> None:
    file = tmp_path / "given"
    if text is not None:
        file.write_text(text)
        file.chmod(0o600)
    outcome = cli.bare("serve", "--root", str(tmp_path), *options.replace("FILE", str(file)).split())
    assert (outcome.status, outcome.out, outcome.err.count("\n")) == (output.FAILED, "", 1)
    assert str(file) in outcome.err


def test_a_missing_user_is_1(cli: CommandLine, tmp_path: Path) -> None:
    users = str(tmp_path / "users.json")
    assert cli.bare("users", users, "--set", "alice", stdin=b"secret\n").status == output.SUCCESS
    outcome = cli.bare("users", users, "--delete", "bob")
    assert (outcome.status, outcome.err) == (
        output.FAILED,
        "distlog: the user does not exist: `distlog users FILE` lists the users (user=bob)\n",
    )


def test_a_name_that_no_topic_can_have_is_2(cli: CommandLine) -> None:
    assert cli.bare("create", f"{cli.url} or so").status == output.WRONG_USAGE


def test_the_table_of_the_page_has_these() -> None:
    statuses = [row[0] for row in table(read("docs/command-line.md"), "## Exit status")]
    named = (output.SUCCESS, output.FAILED, output.WRONG_USAGE, output.INTERRUPTED, output.TERMINATED)
    assert statuses == [str(status) for status in named]
    # the generated page has them in its first lines
    assert re.findall(r"\d+", command_page.text().partition("exit-status)")[2].partition("\n\n")[0]) == statuses


def test_a_folder_that_may_not_be_written_is_named(cli: CommandLine) -> None:
    user = os.geteuid()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        os.chmod(folder, 0o555)
        try:
            os.seteuid(user or 65534)
            outcome = cli.bare("create", f"{folder}/logs/clicks")
        finally:
            os.seteuid(user)
            os.chmod(folder, 0o755)
    assert (outcome.status, outcome.err) == (1, f"distlog: cannot write to {folder}: permission denied\n")

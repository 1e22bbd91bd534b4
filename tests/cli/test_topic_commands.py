"""Commands about whole topics: list, alter, drop, restore, older versions; and how a command ends."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from command_line import CommandLine
from forked_programs import command

import distlog
from distlog.cli.app import COMMANDS
from distlog.cli.app import command as command_of
from distlog.console import output
from distlog.core import paths


def test_list_shows_the_topics_below_a_folder(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create", "--partitions", "3")
    distlog.create(str(tmp_path / "events"), config={"cleanup.policy": "compact"}).append(
        [{"key": "k", "value": "v"}]
    )
    distlog.create(str(tmp_path / "gone")).drop()
    titles, *rows = cli.bare("list", str(tmp_path)).rows
    assert titles == ["topic", "partitions", "version", "segments", "bytes", "cleanup.policy"]
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        ("clicks", "3", "0", "delete"),
        ("events", "1", "1", "compact"),
    ]
    assert [row["topic"] for row in cli.bare("list", str(tmp_path), "--json").json["topics"]] == ["clicks", "events"]


def test_list_reports_an_empty_folder(cli: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    # an object store has no folders, so it holds every address
    for empty in (str(tmp_path / "empty"), "memory://new"):
        assert cli.bare("list", empty) == (0, "", f"distlog: no topics in {empty}\n")
        assert cli.bare("list", empty, "--json") == (
            0,
            '{"topics": [], "errors": {}, "copies": {}, "ok": true}\n',
            "",
        )


def test_list_shows_healthy_topics_and_the_error_of_a_damaged_one(cli: CommandLine, tmp_path: Path) -> None:
    for name in ("clicks", "damaged", "views"):
        distlog.create(str(tmp_path / name))
    (tmp_path / "damaged" / paths.commit_file(0)).write_bytes(b"{}")
    status, out, err = cli.bare("list", str(tmp_path))
    assert (status, [line.split("\t")[0] for line in out.splitlines()]) == (1, ["topic", "clicks", "views"])
    assert (err.count("\n"), err.startswith("distlog: "), "topic=damaged" in err) == (1, True, True)
    listed = cli.bare("list", str(tmp_path), "--json")
    assert (listed.status, listed.err, listed.json["ok"]) == (1, "", False)
    assert [row["topic"] for row in listed.json["topics"]] == ["clicks", "views"]
    assert listed.json["errors"] == {"damaged": err.removeprefix("distlog: ").rstrip("\n")}


def test_list_of_a_missing_folder_fails(cli: CommandLine, tmp_path: Path) -> None:
    wrong = str(tmp_path / "lgos")
    assert cli.bare("list", wrong) == (
        1,
        "",
        f"distlog: the folder does not exist: check the address (root={wrong})\n",
    )


def test_list_of_a_topic_fails_with_advice(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    said = f"distlog: this is a topic, not a folder of topics: use the folder above, {tmp_path} (root={cli.url})\n"
    assert cli("list") == (1, "", said)


@pytest.mark.parametrize("options", [("--config", "retention.ms=1"), ("--storage", "a=1")])
def test_a_setting_that_is_given_twice_is_refused(cli: CommandLine, options: tuple[str, str]) -> None:
    result = cli("create", *options, options[0], options[1].replace("=1", "=2"))
    name = options[1].partition("=")[0]
    assert (result.status, result.out) == (2, "")
    assert f"{name} is set 2 times: set it once" in result.err


def test_alter_sets_and_resets_settings(cli: CommandLine) -> None:
    cli.ok("create", "--config", "retention.bytes=5")
    assert cli.ok("alter", "--config", "retention.ms=-1", "--unset", "retention.bytes").out == (
        "clicks version 1\nretention.ms=-1\nretention.bytes=-1\n"
    )
    assert distlog.open(cli.url).config.overrides() == {"retention.ms": "-1"}
    assert cli("alter").status == cli("alter", "--config", "retention.msx=1").status == 2
    result = cli("alter", "--config", "retention.ms=5", "--unset", "retention.ms")
    assert (result.status, "retention.ms is also set by --config" in result.err) == (2, True)


def test_alter_gives_a_topic_more_partitions(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "2")
    assert cli.ok("alter", "--partitions", "4").out == "clicks version 1\npartitions=4\n"
    assert distlog.open(cli.url).partitions == 4
    refused = cli("alter", "--partitions", "4")
    assert refused.status == 2
    assert "the number of partitions can only grow" in refused.err
    assert cli("alter", "--partitions", "0").status == 2
    assert cli.ok("alter", "--partitions", "5", "--config", "retention.ms=-1", "--json").json["partitions"] == 5


def test_a_partly_wrong_alter_changes_nothing(cli: CommandLine) -> None:
    cli.ok("create", "--partitions", "2")
    for partitions, setting in (("2", "retention.ms=-1"), ("3", "retention.ms=never"), ("3", "retention.msx=1")):
        assert cli("alter", "--partitions", partitions, "--config", setting).status == 2
        assert distlog.open(cli.url).version == 0


def test_drop_asks_for_confirmation(cli: CommandLine) -> None:
    cli.ok("create")
    question = f"drop {cli.url} with 1 partition? [y/N]: "
    for answer in (b"n\n", b"", b"yesterday\n"):
        refused = f"{question}distlog: not dropped: answer y, or add --yes (url={cli.url})\n"
        assert cli("drop", stdin=answer) == (1, "", refused)
    assert distlog.open(cli.url).version == 0
    assert cli("drop", stdin=b"Yes\n") == (0, f"dropped {cli.url}\n", question)
    cli.ok("create")
    assert cli.ok("drop", "--yes").out == f"dropped {cli.url}\n"
    assert cli("describe").status == 1


def test_drop_with_json_needs_yes(cli: CommandLine) -> None:
    cli.ok("create")
    outcome = cli("drop", "--json", stdin=b"y\n")
    assert (outcome.status, outcome.json["type"]) == (2, "BadParameter")
    assert "--yes" in outcome.json["error"]
    assert "?" not in outcome.err
    assert distlog.open(cli.url).version == 0
    assert cli.ok("drop", "--json", "--yes").json["dropped"] is True


def test_restore_brings_back_what_retention_deleted(filled: CommandLine) -> None:
    said = filled.ok("retention").rows[0][0]
    assert "1 by retention.ms=604800000 (the newest record is of 1970-01-01T00:00:05.005Z)" in said
    assert filled.ok("read", "--json").out == ""
    said = filled.ok("restore", "--version", "1").rows[0][0]
    assert said.startswith("restored 1 segment, 5 records, ")
    assert "the next retention deletes 1 segment" in said
    assert filled.ok("read", "--json").out.count("\n") == 5
    assert filled.ok("restore", "--version", "1", "--dry-run", "--json").json["records"] == 0
    assert filled("restore", "--version", "soon").status == 2


@pytest.mark.filterwarnings("default::distlog.RetentionWarning")
def test_append_warns_of_records_that_retention_will_delete(cli: CommandLine) -> None:
    cli.ok("create")
    ran = cli("append", "--format", "records", stdin=b'{"value": "v", "timestamp": "2015-05-17"}\n')
    assert (ran.status, ran.err.count("\n")) == (0, 1)
    assert "1 record is older than retention.ms=604800000, so the next retention deletes them" in ran.err


@pytest.mark.filterwarnings("default::distlog.TimestampWarning")
def test_append_warns_of_timestamps_in_seconds_and_accepts_a_unit(cli: CommandLine) -> None:
    cli.ok("create")
    seconds = b'{"value": "v", "timestamp": 1700000000}\n'
    cli.ok("append", "--format", "records", "--timestamp-unit", "s", stdin=seconds)
    ran = cli("append", "--format", "records", stdin=seconds)
    assert ran.err.startswith("distlog: ")
    assert "1700000000 was taken for milliseconds, and looks like seconds" in ran.err
    assert [json.loads(line)["timestamp"] for line in cli.ok("read", "--json").out.splitlines()] == [
        1700000000000,
        1700000000,
    ]


def test_a_failure_is_one_line_and_with_json_also_an_object(cli: CommandLine) -> None:
    outcome = cli("describe", "--json")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)
    assert outcome.json["type"] == "TopicNotFoundError"
    assert outcome.json["error"] == outcome.err.removeprefix("distlog: ").strip()
    assert cli("describe").out == ""


def test_version_and_short_help_are_printed(cli: CommandLine) -> None:
    assert cli.bare("--version").out == f"distlog {distlog.__version__}\n"
    assert "Usage" in cli.bare("read", "-h").out
    text = cli.bare("--help").out
    assert "--install-completion" in text
    panels = text.partition("\n\nTopics:\n")[2]
    assert re.findall(r"^  ([\w-]+)  ", panels, re.MULTILINE) == [*COMMANDS]
    assert "..." not in panels


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_an_example_that_it_accepts(cli: CommandLine, name: str) -> None:
    usage, *_, title, example = cli.bare(name, "--help").out.splitlines()
    assert (title, re.search(r"[{}]|\[\[|\.{3}.*\.{3}|<", usage)) == ("  Example:", None)
    program, *words = shlex.split(example)
    assert (program, words[0]) == ("distlog", name)
    command_of(name).make_context(name, words[1:])


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_closed_pipe_ends_the_command_silently(cli: CommandLine, as_json: list[str]) -> None:
    topic = distlog.create(cli.url)
    topic.append([{"value": b"%099d" % number} for number in range(20_000)])
    run = command("read", cli.url, *as_json, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stderr is not None
    run.stdout.read(10)
    run.stdout.close()
    assert run.stderr.read() == ""
    assert run.wait() == 1
    run.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a file that is always full is Linux's")
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_output_that_cannot_be_written_is_one_line_on_standard_error(cli: CommandLine, as_json: list[str]) -> None:
    cli.ok("create")
    with open("/dev/full", "w") as full:
        run = command("history", cli.url, *as_json, stdout=full, stderr=subprocess.PIPE)
        said = run.communicate(timeout=300)[1]
    assert (run.returncode, said) == (1, "distlog: [Errno 28] No space left on device\n")


def test_topics_are_opened_or_created(tmp_path: Path) -> None:
    url = str(tmp_path / "clicks")
    assert distlog.open_or_create(url, 3, {"retention.ms": 5}).config.retention_ms == 5
    assert distlog.open_or_create(url).partitions == distlog.open_or_create(url, 3).partitions == 3
    with pytest.raises(distlog.InvalidConfigError, match=r"another number of partitions.*partitions=3 requested=4"):
        distlog.open_or_create(url, 4)
    assert [topic.name for topic in distlog.topics(str(tmp_path))] == ["clicks"]
    assert json.dumps([topic.url for topic in distlog.topics(str(tmp_path))]) == json.dumps([url])


def test_reading_to_a_pipe_makes_no_python_object_per_record(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = distlog.create(cli.url)
    topic.append([{"key": "k", "value": "v"}] * 1000)

    def refused(*_: object) -> None:
        raise AssertionError("a row was made")

    monkeypatch.setattr(output, "rows_of", refused)
    assert cli.ok("read").out.count("\n") == 1001
    assert cli.ok("read", "--json").out.count("\n") == 1000


def test_a_copy_of_a_folder_is_named_until_it_gets_its_own_id(cli: CommandLine, tmp_path: Path) -> None:
    cli.ok("create")
    shutil.copytree(cli.url, tmp_path / "backup")
    listed = cli.bare("list", str(tmp_path))
    assert (listed.status, [row[0] for row in listed.rows]) == (0, ["topic", "backup", "clicks"])
    assert listed.err.startswith("distlog: backup has the topic id of clicks, since one is a copy of the other: ")
    assert list(cli.bare("list", str(tmp_path), "--json").json["copies"]) == ["backup"]
    old_document = cli.bare("describe", str(tmp_path / "backup"), "--json").json
    altered = cli.bare("alter", str(tmp_path / "backup"), "--new-id", "--json").json
    assert (old_document["topic_id"], altered["version"]) == (cli.ok("describe", "--json").json["topic_id"], 1)
    assert cli.bare("describe", str(tmp_path / "backup"), "--json").json["topic_id"] == altered["topic_id"]
    assert altered["topic_id"] != old_document["topic_id"]
    assert cli.bare("list", str(tmp_path)).err == ""


@pytest.fixture
def old(filled: CommandLine) -> CommandLine:
    """Version 1 has the records 0 to 4, version 2 also 5, and version 3 only 5."""
    filled.ok("append", stdin=b"v5")
    filled.ok("delete-records", "--before", "0:5")
    return filled


def read_values(cli: CommandLine, *options: str) -> list[str]:
    return [json.loads(line)["value"] for line in cli.ok("read", "--json", *options).out.splitlines()]


def test_read_shows_the_records_of_a_version(old: CommandLine) -> None:
    assert read_values(old) == ["v5"]
    assert read_values(old, "--version", "2") == [f"v{n}" for n in range(6)]
    assert read_values(old, "--version", "1", "--tail", "2") == ["v3", "v4"]
    assert read_values(old, "--version", "0") == []


def test_read_shows_the_records_at_a_time(old: CommandLine) -> None:
    times = {row["version"]: row["timestamp"] for row in old.ok("history", "--json").json["commits"]}
    assert read_values(old, "--timestamp", str(times[1])) == [f"v{n}" for n in range(5)]
    assert read_values(old, "--timestamp", "now") == ["v5"]
    outcome = old("read", "--timestamp", "1970-01-02")
    assert (outcome.status, outcome.err.count("\n")) == (1, 1)


@pytest.mark.parametrize(("command", "rows"), [("describe", "0 0 5 1"), ("segments", "0 0 5"), ("offsets", "0 0 5")])
def test_describe_and_segments_show_the_version(old: CommandLine, command: str, rows: str) -> None:
    shown = old.ok(command, "--version", "1").rows
    assert shown[-1][: len(rows.split())] == rows.split()
    assert old.ok(command).rows != shown


def test_offsets_of_a_time_use_the_version(old: CommandLine) -> None:
    (row,) = old.ok("offsets", "--time", "earliest", "--version", "1", "--json").json["partitions"]
    assert row["offset"] == 0
    (row,) = old.ok("offsets", "--time", "earliest", "--json").json["partitions"]
    assert row["offset"] == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--version", "1", "--timestamp", "now"], "--version and --timestamp cannot be combined"),
        (["--version", "1", "--follow"], "an old version gets no new records"),
        (["--version", "x"], "`distlog history` lists the versions"),
        (["--timestamp", "soon"], "is not a time: write 2026-01-31"),
    ],
)
def test_contradicting_options_are_refused(old: CommandLine, options: list[str], words: str) -> None:
    outcome = old("read", *options, "--json")
    assert (outcome.status, words in outcome.json["error"]) == (2, True)

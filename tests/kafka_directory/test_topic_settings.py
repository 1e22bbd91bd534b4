"""Adopted topics have the settings in the cluster's metadata, as far as they are valid here."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import struct
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from command_line import CommandLine
from golden import DATA
from raw_batches import batch, record

import distlog
from distlog import InvalidConfigError, InvalidTopicError
from distlog.core.kafka import log_dir as broker_log_dir

SETTINGS = json.loads((DATA / "kafka-4.1" / "settings.json").read_text())
METADATA, LOG, NEWEST = "__cluster_metadata-0", f"{0:020d}.log", f"{53:020d}-{1:010d}.checkpoint"
CLICKS_ID = uuid.UUID(int=7)


def left_log_dir(folder: Path) -> Path:
    return Path(shutil.copytree(DATA / "kafka-4.1" / "settings", folder / "kafka-logs"))


def adopted(log_dir: Path | Sequence[Path], **options: object) -> distlog.AdoptReport:
    first = log_dir if isinstance(log_dir, Path) else log_dir[0]
    return distlog.adopt(log_dir, str(first.parent / "topics"), **options)  # type: ignore[arg-type]


def settings_of(report: distlog.AdoptReport, topic: str) -> dict[str, str]:
    (row,) = [row for row in report.to_dict()["topics"] if row["topic"] == topic]
    assert not report.topics or row["settings"].items() <= report.topics[topic].config.overrides().items()
    return row["settings"]  # type: ignore[no-any-return]


def notes_of(report: distlog.AdoptReport, topic: str) -> list[str]:
    notes = [note.removeprefix(f"{topic}: ") for note in report.notes if note.startswith(f"{topic}: ")]
    return [note for note in notes if not note.startswith("partition ")]


def batch_at(log: Path, offset: int) -> int:
    return log.read_bytes().index(struct.pack(">q", offset))


def flip(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def test_the_settings_equal_the_brokers_answer_to_clients(tmp_path: Path) -> None:
    report = adopted(left_log_dir(tmp_path))
    assert report.ok
    refused = {"flush.messages", "min.insync.replicas"}
    for topic, settings in SETTINGS.items():
        expected = {name: value for name, value in settings.items() if name not in refused}
        assert settings_of(report, topic) == expected
        assert report.topics[topic].config.overrides() == {"retention.ms": "-1", **expected}
    assert notes_of(report, "clicks") == [
        "left out flush.messages=1000: acknowledged records could be lost, since there are no replicas; set it "
        "explicitly if that is intended",
        "left out min.insync.replicas=1: distlog does not have it",
    ]


def test_a_single_adopted_partition_has_the_settings(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    report = distlog.adopt(log_dir / "keyed-0", str(tmp_path / "copied"))
    assert report.topic.config.cleanup_policy == "compact"
    assert report.to_dict()["topics"][0]["settings"] == SETTINGS["keyed"]


def test_given_settings_override_the_brokers_silently(tmp_path: Path) -> None:
    settings = {"retention.ms": "5", "flush.messages": "9", "segment.ms": "77"}
    report = adopted(left_log_dir(tmp_path), topics=["clicks"], config=settings)
    assert report.topic.config.overrides() == {
        **settings,
        "cleanup.policy": "delete",
        "retention.bytes": "5000000",
    }
    assert notes_of(report, "clicks") == ["left out min.insync.replicas=1: distlog does not have it"]


def test_the_longest_metadata_of_all_directories_applies(tmp_path: Path) -> None:
    brokers = [left_log_dir(tmp_path / name) for name in ("a", "b", "c")]
    shutil.rmtree(brokers[0] / METADATA)
    shorter = brokers[1] / METADATA / LOG
    shorter.write_bytes(shorter.read_bytes()[: batch_at(shorter, 68)])
    for folder in brokers[2].glob("[!_]*-[0-9]"):
        shutil.rmtree(folder)
    assert adopted(brokers[:2]).topics["clicks"].config.retention_ms == 86_400_000
    shutil.rmtree(tmp_path / "a" / "topics")
    assert adopted(brokers).topics["clicks"].config.retention_ms == 172_800_000


@pytest.mark.parametrize("folder", ["", METADATA])
def test_metadata_without_a_topic_is_refused(folder: str, tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    for topic in log_dir.glob("[!_]*-[0-9]"):
        shutil.rmtree(topic)
    with pytest.raises(InvalidTopicError, match="the cluster's metadata, and no topic"):
        adopted(log_dir / folder)


def test_without_metadata_nothing_is_deleted(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    shutil.rmtree(log_dir / METADATA)
    report = adopted(log_dir)
    assert report.notes == ()
    assert report.topics["keyed"].config.overrides() == {"retention.ms": "-1"}


def test_settings_of_another_topic_id_are_ignored(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    shutil.copy(log_dir / "keyed-0" / "partition.metadata", log_dir / "clicks-0")
    shutil.copy(log_dir / "keyed-0" / "partition.metadata", log_dir / "clicks-1")
    report = adopted(log_dir, topics=["clicks"])
    assert report.topic.config.overrides() == {"retention.ms": "-1"}
    assert notes_of(report, "clicks") == [
        "the cluster's metadata does not have this topic: its settings are not known"
    ]


def test_an_existing_topic_keeps_its_settings(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    old_topic = adopted(log_dir, topics=["clicks"], config={"retention.ms": 1}).topic
    report = adopted(log_dir, topics=["clicks"])
    assert report.topic.config == old_topic.config
    assert settings_of(report, "clicks") == {}
    assert report.notes[-1] == "clicks: was adopted before"


def test_the_previous_snapshot_replaces_a_damaged_one(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    flip(log_dir / METADATA / NEWEST, 900)
    report = adopted(log_dir)
    assert settings_of(report, "keyed") == SETTINGS["keyed"]
    (note,) = {note for topic in SETTINGS for note in notes_of(report, topic) if "snapshot" in note}
    assert note.startswith(f"{METADATA[:-2]}: an older snapshot is used: ")
    assert NEWEST in note


def test_a_truncated_snapshot_is_ignored(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    for snapshot in (log_dir / METADATA).glob("*.checkpoint"):
        snapshot.write_bytes(snapshot.read_bytes()[:-75])
    report = adopted(log_dir)
    assert settings_of(report, "keyed") == SETTINGS["keyed"]
    assert sum("the snapshot is incomplete" in note for note in notes_of(report, "keyed")) == 2


def damage_the_log(folder: Path) -> None:
    flip(folder / LOG, 5000)


def lose_the_middle(folder: Path) -> None:
    remainder = (folder / LOG).read_bytes()[batch_at(folder / LOG, 68) :]
    (folder / LOG).unlink()
    (folder / f"{68:020d}.log").write_bytes(remainder)


def lose_the_log(folder: Path) -> None:
    (folder / LOG).unlink()


def lose_all_behind_a_damaged_snapshot(folder: Path) -> None:
    flip(folder / NEWEST, 900)
    (folder / LOG).unlink()
    (folder / f"{53:020d}.log").touch()


def lose_the_end_below_a_damaged_snapshot(folder: Path) -> None:
    flip(folder / NEWEST, 900)
    log = folder / LOG
    log.write_bytes(log.read_bytes()[: batch_at(log, 50)])


def lose_what_a_snapshot_without_content_had(folder: Path) -> None:
    (folder / f"{10**19:020d}-{1:010d}.checkpoint").touch()


def put_a_pipe(folder: Path) -> None:
    (folder / NEWEST).unlink()
    os.mkfifo(folder / NEWEST)


def put_a_link(folder: Path) -> None:
    (folder / NEWEST).rename(folder.parent / "elsewhere")
    (folder / NEWEST).symlink_to(folder.parent / "elsewhere")


@pytest.mark.parametrize(
    "damage",
    [
        damage_the_log,
        lose_the_middle,
        lose_the_log,
        lose_all_behind_a_damaged_snapshot,
        lose_the_end_below_a_damaged_snapshot,
        lose_what_a_snapshot_without_content_had,
        put_a_pipe,
        put_a_link,
    ],
)
def test_topics_are_adopted_without_settings_if_changes_may_be_lost(damage: object, tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    damage(log_dir / METADATA)  # type: ignore[operator]
    report = adopted(log_dir)
    assert report.ok
    for topic in SETTINGS:
        assert report.topics[topic].config.overrides() == {"retention.ms": "-1"}
        note = notes_of(report, topic)[-1]
        assert note.startswith("settings are not taken from __cluster_metadata, which is damaged: ")


@pytest.mark.parametrize("limit", [1 << 20, 1])
def test_after_a_crash_damage_before_a_whole_batch_is_not_the_end(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_log_dir, "_MAX_CHECKED_BYTES", limit)
    log_dir = left_log_dir(tmp_path)
    (log_dir / ".kafka_cleanshutdown").unlink()
    log = log_dir / METADATA / LOG
    flip(log, batch_at(log, 68) + 30)
    report = adopted(log_dir, topics=["clicks"])
    assert settings_of(report, "clicks") == {}
    assert "which is damaged: " in notes_of(report, "clicks")[0]


def test_after_a_crash_zeros_at_the_end_are_ignored(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    (log_dir / ".kafka_cleanshutdown").unlink()
    log = log_dir / METADATA / LOG
    content = log.read_bytes()
    log.write_bytes(content[: batch_at(log, 68)].ljust(len(content), b"\0"))
    report = adopted(log_dir, topics=["clicks"])
    assert settings_of(report, "clicks")["retention.ms"] == "86400000"
    assert "__cluster_metadata: cut from position " in notes_of(report, "clicks")[0]


def test_after_a_crash_the_log_ends_before_the_batch_that_is_not_whole(tmp_path: Path) -> None:
    log_dir = left_log_dir(tmp_path)
    (log_dir / ".kafka_cleanshutdown").unlink()
    log = log_dir / METADATA / LOG
    log.write_bytes(log.read_bytes()[:-1])
    report = adopted(log_dir)
    assert settings_of(report, "late") == SETTINGS["late"]
    assert "__cluster_metadata: cut from position " in notes_of(report, "late")[0]


def text(value: str | None) -> bytes:
    return b"\0" if value is None else bytes([len(value) + 1]) + value.encode()


def topic_record(name: str = "clicks", topic_id: uuid.UUID = CLICKS_ID) -> bytes:
    return b"\1\2\0" + text(name) + topic_id.bytes + b"\0"


def setting(name: str, value: str | None, topic: str = "clicks", kind: int = 2) -> bytes:
    return b"\1\4\0" + bytes([kind]) + text(topic) + text(name) + text(value) + b"\0"


BEGIN, END, ABORT = b"\1\x17\0\1\0\2\1a", b"\1\x18\0\0", b"\1\x19\0\0"
REMOVED = b"\1\x09\0" + CLICKS_ID.bytes + b"\0"
RETENTION = setting("retention.ms", "1000")


def made_log_dir(folder: Path, values: Iterable[bytes | None]) -> Path:
    """Return a log directory with the topic clicks and these metadata records."""
    log_dir = folder / "kafka-logs"
    (log_dir / "clicks-0").mkdir(parents=True)
    (log_dir / "clicks-0" / LOG).write_bytes(batch([record(value=b"v")]))
    (log_dir / METADATA).mkdir()
    records = [record(number, value=value) for number, value in enumerate(values)]
    (log_dir / METADATA / LOG).write_bytes(batch(records))
    (log_dir / ".kafka_cleanshutdown").touch()
    return log_dir


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([topic_record(), RETENTION], {"retention.ms": "1000"}),
        ([topic_record(), RETENTION, setting("retention.ms", None)], {}),
        ([topic_record(), RETENTION, REMOVED, topic_record()], {}),
        ([topic_record(), setting("retention.ms", "2", kind=4)], {}),
        ([BEGIN, topic_record(), RETENTION, END], {"retention.ms": "1000"}),
        ([topic_record(), BEGIN, RETENTION, ABORT], {}),
        ([topic_record(), BEGIN, RETENTION], {}),
        ([topic_record(), RETENTION, b"\1\x7f\3whatever", b"\1\x81\2\0"], {"retention.ms": "1000"}),
        # with a field that a newer version has appended
        ([topic_record(), RETENTION[:-1] + b"\1\5\2xx"], {"retention.ms": "1000"}),
    ],
)
def test_settings_are_the_result_of_all_records(
    values: list[bytes], expected: dict[str, str], tmp_path: Path
) -> None:
    report = adopted(made_log_dir(tmp_path, values))
    assert (settings_of(report, "clicks"), report.topic.config.overrides()) == (
        expected,
        {"retention.ms": "-1", **expected},
    )


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\1",
        b"\0\2\0",
        b"\2\4\0",
        b"\1\4",
        RETENTION[:-3],
        RETENTION + b"\0",
        RETENTION[:2] + b"\1" + RETENTION[3:],
        RETENTION[:4] + b"\xff\xff\xff\xff\x0f" + RETENTION[5:],
        RETENTION[:4] + b"\xff" * 9,
        b"\1\4\0\2\3\xff\xfe",
        RETENTION[:-1] + b"\xff\xff\xff\xff\x7f",
        topic_record()[:-9],
        REMOVED[:-4],
    ],
)
def test_undecodable_metadata_is_reported_and_ignored(value: bytes | None, tmp_path: Path) -> None:
    report = adopted(made_log_dir(tmp_path, [topic_record(), RETENTION, value]))
    assert report.ok
    assert report.topic.config.overrides() == {"retention.ms": "-1"}
    (note,) = notes_of(report, "clicks")
    assert note.startswith("settings are not taken from __cluster_metadata, which is damaged: ")


def test_invalid_settings_are_ignored_and_reported_on_one_line(tmp_path: Path) -> None:
    wrong = [
        setting("segment.bytes", "14"),
        setting("compression.type", "lzma"),
        setting("min.compaction.lag.ms", "9"),
        setting("max.compaction.lag.ms", "8"),
        setting("file.delete.delay.ms", "60000"),
        setting("a\x1b[2J\nb", "x" * 120),
    ]
    report = adopted(made_log_dir(tmp_path, [topic_record(), *wrong, RETENTION]))
    assert report.topic.config.overrides() == {"retention.ms": "1000", "max.compaction.lag.ms": "8"}
    assert notes_of(report, "clicks") == [
        rf"left out a\x1b[2J\nb={'x' * 59}…: distlog does not have it",
        "left out compression.type=lzma: compression.type must be one of producer, uncompressed, gzip, snappy, lz4, "
        "zstd",
        "left out file.delete.delay.ms=60000: readers of an older version need removed files for longer; set it "
        "explicitly if that is intended",
        "left out min.compaction.lag.ms=9: min.compaction.lag.ms must not be above max.compaction.lag.ms",
        "left out segment.bytes=14: segment.bytes must be between 1048576 and 2147483647",
    ]


@pytest.mark.parametrize("policy", ["shred", "", ",", "delete,shred"])
def test_without_a_cleanup_policy_nothing_is_deleted(policy: str, tmp_path: Path) -> None:
    records = [
        RETENTION,
        setting("retention.bytes", "5"),
        setting("cleanup.policy", policy),
        setting("segment.ms", "7"),
    ]
    report = adopted(made_log_dir(tmp_path, [topic_record(), *records]))
    assert report.topic.config.overrides() == {"retention.ms": "-1", "segment.ms": "7"}
    assert settings_of(report, "clicks") == {"segment.ms": "7"}
    assert notes_of(report, "clicks") == [
        f"left out cleanup.policy={policy}: cleanup.policy must be one of delete, compact, compact,delete, "
        "delete,compact",
        "left out retention.bytes=5: without the topic's cleanup.policy it could delete kept records",
        "left out retention.ms=1000: without the topic's cleanup.policy it could delete kept records",
    ]


@pytest.mark.parametrize(
    ("text", "policy"),
    [("compact,compact", "compact"), (" compact , delete,compact", "compact,delete"), ("delete ", "delete")],
)
def test_values_are_normalized(text: str, policy: str, tmp_path: Path) -> None:
    settings = [setting("cleanup.policy", text), setting("retention.ms", " 1000 ")]
    report = adopted(made_log_dir(tmp_path, [topic_record(), *settings]))
    assert settings_of(report, "clicks") == {"cleanup.policy": policy, "retention.ms": "1000"}
    assert report.topic.config.cleanup_policy == policy


def test_given_settings_that_contradict_the_brokers_fail_that_topic_alone(tmp_path: Path) -> None:
    log_dir = made_log_dir(tmp_path, [topic_record(), setting("max.compaction.lag.ms", "8")])
    shutil.copytree(log_dir / "clicks-0", log_dir / "others-0")
    report = adopted(log_dir, config={"min.compaction.lag.ms": 9})
    assert [(topic.name, topic.result) for topic in report.adopted] == [("clicks", "failed"), ("others", "adopted")]
    assert isinstance(report.adopted[0].error, InvalidConfigError)


def test_the_size_of_metadata_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = made_log_dir(tmp_path, [topic_record(), RETENTION])
    bounds = {
        "_MAX_BYTES": 100,
        "_MAX_VALUES": 1,
        "_MAX_VALUE_BYTES": 20,
        "_MAX_TOPIC_BYTES": 15,
        "_MAX_RECORD_BYTES": 28,
        "_MAX_BATCH_BYTES": 100,
    }
    for name, most in bounds.items():
        with monkeypatch.context() as bounded:
            bounded.setattr(broker_log_dir, name, most)
            report = adopted(log_dir, dry_run=True)
        assert "too large" in (note := notes_of(report, "clicks")[0]) or "too many" in note
        assert settings_of(report, "clicks") == {}
    assert settings_of(adopted(log_dir, dry_run=True), "clicks") == {"retention.ms": "1000"}


def test_a_compressed_batch_is_refused_and_not_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = made_log_dir(tmp_path, [topic_record(), RETENTION])
    large = gzip.compress(record(0, value=b"\1\x7f\0" + bytes(1 << 20)))
    with (log_dir / METADATA / LOG).open("ab") as log:
        log.write(batch([b""], base_offset=2, attributes=1, section=large))
    monkeypatch.setattr(broker_log_dir, "decode", lambda *_, **__: pytest.fail("it was expanded"))
    report = adopted(log_dir)
    assert settings_of(report, "clicks") == {}
    assert "a batch is compressed, and batches of metadata never are" in notes_of(report, "clicks")[0]


def of_cluster(log_dir: Path, cluster_id: str | None, topic_id: uuid.UUID | None = None) -> Path:
    """Return the log directory with its cluster id and the id of its topic clicks."""
    if cluster_id is not None:
        (log_dir / "meta.properties").write_text(f"#\n#Thu\ncluster.id={cluster_id}\nversion=1\nnode.id=1\n")
    if topic_id is not None:
        encoded = base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
        (log_dir / "clicks-0" / "partition.metadata").write_text(f"version: 0\ntopic_id: {encoded}")
    return log_dir


LONGER = [topic_record(topic_id=uuid.UUID(int=9)), *[setting("retention.ms", "5")] * 9]


@pytest.mark.parametrize(
    ("ids", "topic_id", "expected"),
    [
        # the topic belongs to the cluster with its id, whose metadata is the shorter one
        (("A", "B"), CLICKS_ID, {"retention.ms": "1000"}),
        (("A", "B"), None, {}),
        (("A", None), None, {}),
        (("A", "A"), None, {"retention.ms": "5"}),
        ((None, None), None, {"retention.ms": "5"}),
    ],
)
def test_the_topic_id_selects_the_cluster_of_the_settings(
    ids: tuple[str | None, str | None], topic_id: uuid.UUID | None, expected: dict[str, str], tmp_path: Path
) -> None:
    own_dir = of_cluster(made_log_dir(tmp_path / "own", [topic_record(), RETENTION]), ids[0], topic_id)
    other = of_cluster(made_log_dir(tmp_path / "other", LONGER), ids[1])
    shutil.rmtree(other / "clicks-0")
    report = adopted([own_dir, other])
    assert settings_of(report, "clicks") == expected
    assert report.topic.config.overrides() == {"retention.ms": "-1", **expected}
    text = "there is metadata of several clusters, and the topic has no id that selects one"
    assert notes_of(report, "clicks") == ([] if expected else [f"{text}: its settings are not known"])


def test_contradicting_settings_of_clusters_are_ignored(tmp_path: Path) -> None:
    own_dir = of_cluster(made_log_dir(tmp_path / "own", [topic_record(), RETENTION]), "A", CLICKS_ID)
    other = of_cluster(made_log_dir(tmp_path / "other", [topic_record()]), "B")
    shutil.rmtree(other / "clicks-0")
    report = adopted([own_dir, other])
    assert report.topic.config.overrides() == {"retention.ms": "-1"}
    assert notes_of(report, "clicks") == [
        "several clusters have this topic, with different settings: its settings are not known"
    ]


@pytest.mark.parametrize("kind", ["a pipe", "a link", "a folder", "large", "no text"])
def test_an_unreadable_cluster_id_does_not_stop_adoption(kind: str, tmp_path: Path) -> None:
    log_dir = made_log_dir(tmp_path, [topic_record(), RETENTION])
    path = log_dir / "meta.properties"
    if kind == "a pipe":
        os.mkfifo(path)
    elif kind == "a link":
        path.symlink_to(tmp_path / "nowhere")
    elif kind == "a folder":
        path.mkdir()
    else:
        path.write_bytes(b"\xff=\n" * (1 if kind == "no text" else 30_000))
    assert settings_of(adopted(log_dir), "clicks") == {"retention.ms": "1000"}


def test_the_command_shows_a_table_of_topics_with_their_settings(tmp_path: Path, cli: CommandLine) -> None:
    log_dir = left_log_dir(tmp_path)
    url = str(tmp_path / "topics")
    dry = cli.bare("adopt", str(log_dir), "--to", url, "--dry-run", "--json").json["topics"]
    outcome = cli.bare("adopt", str(log_dir), "--to", url)
    rows = [line.split("\t") for line in outcome.out.splitlines() if "\t" in line]
    assert rows[0] == ["topic", "result", "partitions", "records", "segments", "bytes", "settings"]
    assert rows[2] == [
        "keyed",
        "adopted",
        "1",
        "40",
        "1",
        "731",
        "cleanup.policy=compact compression.type=zstd min.cleanable.dirty.ratio=0.1",
    ]
    topic_rows = cli.bare("adopt", str(log_dir), "--to", url, "--json").json["topics"]
    assert {row["result"] for row in topic_rows} == {"unchanged"}
    assert [(row["topic"], row["records"], row["partitions"]) for row in dry] == [
        (row["topic"], row["records"], row["partitions"]) for row in topic_rows
    ]
    assert dry[1]["settings"] == SETTINGS["keyed"]
    assert [len(row["notes"]) for row in dry] == [2, 0, 0, 0, 0]

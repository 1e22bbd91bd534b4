"""The stories of Kafka's own tools, as a user runs them: tools.py JARS ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...]"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from peers.programs import java

_TOOLS = "org.apache.kafka.tools"
_PATIENCE_SECONDS = 120


class Tools:
    """Kafka's tools at one server; each story takes topics and groups of its own."""

    def __init__(self, jars: str, address: str, secured: str, prefix: str) -> None:
        self._jars, self._options, self._prefix = Path(jars), address, prefix
        self._secured = secured

    def run(self, name: str, *arguments: str, text: str = "") -> str:
        """Return the output of a tool. Raises AssertionError if it fails."""
        command = java(self._jars, name, "--bootstrap-server", self._options, *arguments)
        process = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False
        )
        shown = " ".join((process.stdout + process.stderr).split())[-700:]
        assert process.returncode == 0, f"{name} {' '.join(arguments)} ended with {process.returncode}: {shown}"
        return process.stdout + "\n" + process.stderr

    def topic(self, name: str, partitions: int = 1, *options: str) -> str:
        """A topic by `kafka-topics --create`."""
        full = f"{self._prefix}-{name}"
        self.run(f"{_TOOLS}.TopicCommand", "--create", "--topic", full, "--partitions", str(partitions), *options)
        return full

    def written(self, topic: str, *lines: str) -> None:
        """Records by `kafka-console-producer`."""
        self.run(f"{_TOOLS}.ConsoleProducer", "--topic", topic, text="".join(f"{line}\n" for line in lines))

    # --- the stories

    def topics(self) -> None:
        """kafka-topics"""
        command, topic = f"{_TOOLS}.TopicCommand", self.topic("t", 2, "--config", "retention.ms=1000")
        shown = self.run(command, "--describe", "--topic", topic)
        assert "PartitionCount: 2" in shown, shown
        assert "retention.ms=1000" in shown, shown
        assert len(re.findall(r"Leader: \d", shown)) == 2, shown
        self.run(command, "--alter", "--topic", topic, "--partitions", "4")
        assert "PartitionCount: 4" in self.run(command, "--describe", "--topic", topic)
        assert topic in self.run(command, "--list").splitlines()
        for question in ("under-replicated", "unavailable", "under-min-isr"):
            shown = self.run(command, "--describe", f"--{question}-partitions")
            assert topic not in shown, shown
        assert topic in self.run(command, "--describe", "--at-min-isr-partitions")
        self.run(command, "--create", "--topic", topic, "--if-not-exists")
        self.run(command, "--delete", "--topic", topic)
        assert topic not in self.run(command, "--list").splitlines()

    def configs(self) -> None:
        """kafka-configs: of topics, brokers and clients"""
        command, topic = f"{_TOOLS}.ConfigCommand", self.topic("configs")
        of_topic = ("--entity-type", "topics", "--entity-name", topic)
        self.run(command, "--alter", *of_topic, "--add-config", "retention.ms=5000,cleanup.policy=[delete,compact]")
        shown = self.run(command, "--describe", *of_topic)
        assert "retention.ms=5000" in shown, shown
        self.run(command, "--alter", *of_topic, "--delete-config", "retention.ms")
        assert "retention.ms=5000" not in self.run(command, "--describe", *of_topic)
        assert "segment.bytes=" in self.run(command, "--describe", *of_topic, "--all")
        assert "Dynamic configs" in self.run(command, "--describe", "--entity-type", "brokers")
        assert "num.io.threads=" in self.run(command, "--describe", "--entity-type", "brokers", "--all")

    def client_quotas(self) -> None:
        """kafka-configs: quotas of users and client ids"""
        command, user = f"{_TOOLS}.ConfigCommand", ("--entity-type", "users", "--entity-name", self._prefix)
        self.run(command, "--alter", *user, "--add-config", "producer_byte_rate=1024")
        assert "producer_byte_rate=1024" in self.run(command, "--describe", *user)
        self.run(command, "--alter", *user, "--delete-config", "producer_byte_rate")
        assert "producer_byte_rate" not in self.run(command, "--describe", *user)

    def console(self) -> None:
        """kafka-console-producer, kafka-console-consumer, kafka-get-offsets"""
        topic, reader = self.topic("console"), f"{_TOOLS}.consumer.ConsoleConsumer"
        self.written(topic, "one", "two", "three")
        first = ("--topic", topic, "--timeout-ms", "60000")
        shown = self.run(reader, *first, "--from-beginning", "--max-messages", "3")
        assert shown.splitlines()[:3] == ["one", "two", "three"], shown
        shown = self.run(reader, *first, "--partition", "0", "--offset", "2", "--max-messages", "1")
        assert shown.splitlines()[0] == "three", shown
        for time, offset in (("-1", "3"), ("earliest", "0"), ("latest", "3")):
            shown = self.run(f"{_TOOLS}.GetOffsetShell", "--topic", topic, "--time", time)
            assert f"{topic}:0:{offset}" in shown, shown

    def groups(self) -> None:
        """kafka-consumer-groups and kafka-groups"""
        topic, command = self.topic("grouped", 2), f"{_TOOLS}.consumer.group.ConsumerGroupCommand"
        self.written(topic, "one", "two", "three")
        for protocol in ("classic", "consumer"):
            group = f"{self._prefix}-{protocol}"
            reading = ("--topic", topic, "--group", group, "--max-messages", "3", "--timeout-ms", "60000")
            how = ("--consumer-property", f"group.protocol={protocol}", "--from-beginning")
            self.run(f"{_TOOLS}.consumer.ConsoleConsumer", *reading, *how)
            shown = self.run(command, "--describe", "--group", group)
            rows = [line.split() for line in shown.splitlines() if line.startswith(group)]
            assert sum(int(row[3]) for row in rows) == 3, shown
            for option in ("--state", "--members", "--offsets"):
                self.run(command, "--describe", "--group", group, option)
            assert group in self.run(command, "--list")
            assert "Empty" in self.run(command, "--list", "--state")
            assert group in self.run(f"{_TOOLS}.GroupsCommand", "--list")
            moved = ("--reset-offsets", "--group", group, "--topic", topic, "--execute")
            self.run(command, *moved, "--to-earliest")
            self.run(command, *moved, "--shift-by", "1")
            self.run(command, *moved, "--by-duration", "PT1H")
            self.run(command, "--delete-offsets", "--group", group, "--topic", topic)
            self.run(command, "--delete", "--group", group)
            assert group not in self.run(command, "--list")

    def share_groups(self) -> None:
        """kafka-console-share-consumer and kafka-share-groups"""
        group = self.topic("share")
        settings = ("--entity-type", "groups", "--entity-name", group, "--add-config")
        self.run(f"{_TOOLS}.ConfigCommand", "--alter", *settings, "share.auto.offset.reset=earliest")
        self.written(group, "one", "two", "three")
        reading = ("--topic", group, "--group", group, "--max-messages", "3", "--timeout-ms", "60000")
        shown = self.run(f"{_TOOLS}.consumer.ConsoleShareConsumer", *reading)
        assert shown.splitlines()[:3] == ["one", "two", "three"], shown
        assert group in self.run(f"{_TOOLS}.consumer.group.ShareGroupCommand", "--list")

    def perf(self) -> None:
        """kafka-producer-perf-test, kafka-consumer-perf-test and kafka-e2e-latency"""
        topic = self.topic("perf", 3)
        load = ("--num-records", "5000", "--record-size", "100", "--throughput", "-1")
        shown = self.run(f"{_TOOLS}.ProducerPerformance", "--topic", topic, *load)
        assert "5000 records sent" in shown, shown
        in_transactions = ("--transactional-id", f"{self._prefix}-perf", "--transaction-duration-ms", "100")
        self.run(f"{_TOOLS}.ProducerPerformance", "--topic", topic, *load, *in_transactions)
        shown = self.run(f"{_TOOLS}.ConsumerPerformance", "--topic", topic, "--num-records", "5000")
        assert ", 5" in shown, shown

    def transactions(self) -> None:
        """kafka-transactions"""
        topic, name = self.topic("txn"), f"{self._prefix}-tool"
        load = ("--num-records", "100", "--record-size", "10", "--throughput", "-1")
        self.run(f"{_TOOLS}.ProducerPerformance", "--topic", topic, *load, "--transactional-id", name)
        assert name in self.run(f"{_TOOLS}.TransactionsCommand", "list")
        shown = self.run(f"{_TOOLS}.TransactionsCommand", "describe", "--transactional-id", name)
        assert "CompleteCommit" in shown, shown
        options = ("--topic", topic, "--partition", "0")
        assert "None" in self.run(f"{_TOOLS}.TransactionsCommand", "describe-producers", *options)
        self.run(f"{_TOOLS}.TransactionsCommand", "find-hanging", "--broker-id", self._node())

    def log_dirs(self) -> None:
        """kafka-log-dirs"""
        topic = self.topic("dirs")
        self.written(topic, "one")
        shown = self.run(f"{_TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
        (line,) = [entry for entry in shown.splitlines() if entry.startswith("{")]
        sizes = [
            part["size"]
            for node in json.loads(line)["brokers"]
            for entry in node["logDirs"]
            for part in entry["partitions"]
        ]
        assert sum(sizes) > 0, line

    def features(self) -> None:
        """kafka-features"""
        assert "group.version" in self.run(f"{_TOOLS}.FeatureCommand", "describe")

    def api_versions(self) -> None:
        """kafka-broker-api-versions"""
        assert "Produce(0)" in self.run(f"{_TOOLS}.BrokerApiVersionsCommand")

    def quorum(self) -> None:
        """kafka-metadata-quorum"""
        assert "LeaderId" in self.run(f"{_TOOLS}.MetadataQuorumCommand", "describe", "--status")

    def cluster(self) -> None:
        """kafka-cluster"""
        # the address comes after the verb
        process = subprocess.run(
            java(self._jars, f"{_TOOLS}.ClusterTool", "cluster-id", "--bootstrap-server", self._options),
            capture_output=True,
            text=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
        assert "Cluster ID" in process.stdout, process

    def delete_records(self) -> None:
        """kafka-delete-records"""
        topic = self.topic("deleted")
        self.written(topic, "one", "two", "three")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump({"version": 1, "partitions": [{"topic": topic, "partition": 0, "offset": 2}]}, file)
            file.flush()
            shown = self.run(f"{_TOOLS}.DeleteRecordsCommand", "--offset-json-file", file.name)
        assert "low_watermark: 2" in shown, shown

    def leader_election(self) -> None:
        """kafka-leader-election"""
        topic = self.topic("elected", 2)
        command = (f"{_TOOLS}.LeaderElectionCommand", "--election-type", "preferred")
        self.run(*command, "--topic", topic, "--partition", "0")
        self.run(*command, "--all-topic-partitions")

    def reassign(self) -> None:
        """kafka-reassign-partitions"""
        self.run(f"{_TOOLS}.reassign.ReassignPartitionsCommand", "--list")

    def acls(self) -> None:
        """kafka-acls"""
        command, topic = f"{_TOOLS}.AclCommand", f"{self._prefix}-acl"
        options = ("--allow-principal", "User:alice", "--consumer", "--topic", topic, "--group", topic, "--force")
        self._options = self._secured
        self.run(command, "--add", *options)
        shown = self.run(command, "--list", "--topic", topic)
        assert "principal=User:alice" in shown, shown
        self.run(command, "--remove", *options)
        assert "User:alice" not in self.run(command, "--list", "--topic", topic)

    def users(self) -> None:
        """kafka-configs: SCRAM"""
        command, user = (
            f"{_TOOLS}.ConfigCommand",
            ("--entity-type", "users", "--entity-name", f"{self._prefix}-bob"),
        )
        self._options = self._secured
        self.run(command, "--alter", *user, "--add-config", "SCRAM-SHA-256=[iterations=4096,password=a-password]")
        assert "iterations=4096" in self.run(command, "--describe", *user)
        assert "iterations=4096" in self.run(command, "--describe", "--entity-type", "users")
        self.run(command, "--alter", *user, "--delete-config", "SCRAM-SHA-256")
        assert "iterations=4096" not in self.run(command, "--describe", *user)

    def verifiable(self) -> None:
        """kafka-verifiable-producer and kafka-verifiable-consumer"""
        topic = self.topic("verified")
        self.run(f"{_TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "500")
        reading = ("--topic", topic, "--group-id", topic, "--max-messages", "500", "--reset-policy", "earliest")
        events = [
            json.loads(line)
            for line in self.run(f"{_TOOLS}.VerifiableConsumer", *reading).splitlines()
            if line[:1] == "{"
        ]
        assert sum(line["count"] for line in events if line["name"] == "records_consumed") == 500

    def _node(self) -> str:
        match = re.search(r"id: (\d+)", self.run(f"{_TOOLS}.BrokerApiVersionsCommand"))
        assert match is not None
        return match[1]


STORIES: dict[str, Callable[[Tools], None]] = {
    "kafka-topics": Tools.topics,
    "kafka-configs": Tools.configs,
    "kafka-configs-quotas": Tools.client_quotas,
    "kafka-console-producer-consumer-get-offsets": Tools.console,
    "kafka-consumer-groups": Tools.groups,
    "kafka-share-groups": Tools.share_groups,
    "kafka-perf-tests": Tools.perf,
    "kafka-transactions": Tools.transactions,
    "kafka-log-dirs": Tools.log_dirs,
    "kafka-features": Tools.features,
    "kafka-broker-api-versions": Tools.api_versions,
    "kafka-metadata-quorum": Tools.quorum,
    "kafka-cluster": Tools.cluster,
    "kafka-delete-records": Tools.delete_records,
    "kafka-leader-election": Tools.leader_election,
    "kafka-reassign-partitions": Tools.reassign,
    "kafka-verifiable": Tools.verifiable,
    "kafka-acls": Tools.acls,
    "kafka-configs-scram": Tools.users,
}


def main(jars: str, address: str, secured: str, prefix: str, *only: str) -> None:
    for name, story in STORIES.items():
        if only and name not in only:
            continue
        try:
            story(Tools(jars, address, secured, prefix))
            print("ok", name, flush=True)
        except Exception as error:
            print("failed", name, type(error).__name__, " ".join(str(error).split()), flush=True)
    print("end")


if __name__ == "__main__":
    main(*sys.argv[1:])

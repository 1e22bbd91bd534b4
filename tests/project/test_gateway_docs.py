"""The pages of the gateway cannot drift: their examples run, and their tables match the code."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from command_line import CommandLine
from docs_pages import Reader, examples, read, table
from gateways import API_VERSIONS, Wire, serving, until
from users_files import users_file

from distlog.cli import app
from distlog.core.kafka.transactions import TRANSACTIONS_TOPIC
from distlog.core.log.producers import _MAX_EXPANSION, _MIN_EXPANSION_LIMIT
from distlog.core.read.kafka_offsets import OFFSETS_TOPIC
from distlog.core.write.engine import PRODUCER_SEARCH_AGE_MS
from distlog.gateway.apis import APIS
from distlog.gateway.cluster import GATEWAYS_GROUP as GATEWAYS
from distlog.gateway.cluster import LEASE_S, ROOT_ID
from distlog.gateway.cluster import MAINTENANCE_GROUP as MAINTENANCE
from distlog.gateway.config import STANDARD_AUTHORIZER, AclSettings, GatewayConfig, gateway_settings
from distlog.gateway.gateway_server import STOP_TIMEOUT_S
from distlog.gateway.groups.offsets_topic import PARTITIONS
from distlog.gateway.protocol.messages import LARGEST_OTHER_BYTES, MAX_ITEMS
from distlog.gateway.security.authentication import Authentication
from distlog.gateway.security.users_file import UsersFile
from distlog.gateway.server.socket_server import BYTES_PER_S
from distlog.gateway.transactions.transaction_coordinator import EXPIRATION_MS

PAGES = ("gateway.md", "gateway-operations.md", "gateway-security.md")
TEXT = "\n".join(read(f"docs/{page}") for page in PAGES)
TABLES = TEXT.replace("`", "")


@pytest.mark.parametrize("page", ["docs/gateway.md", "docs/gateway-operations.md"])
def test_the_python_examples_run(page: str, reader: Reader) -> None:
    pytest.importorskip("confluent_kafka")
    reader.pastes(page)


def test_the_examples_of_tls_and_users_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reader: Reader
) -> None:
    admin = pytest.importorskip("confluent_kafka.admin")
    blocks = "".join(re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)).replace("\\\n", "")
    openssl, *commands = re.findall(r"^(openssl .*|distlog users .*)$", blocks, re.MULTILINE)
    # without an advertised name, clients get the address
    command = openssl.replace("DNS:log.example.org", "DNS:localhost,IP:127.0.0.1").replace(
        "log.example.org", "localhost"
    )
    subprocess.run(shlex.split(command), cwd=tmp_path, capture_output=True, check=True)
    line, output = CommandLine("", monkeypatch, capsys), ""
    for command in commands:
        words = shlex.split(command.partition("<")[0])
        output += line.bare(*words[1:], stdin=b"sesame\n").out
    assert output.splitlines() == ["set alice", "set bob", "alice", "bob", "deleted bob"]
    names = reader.pastes("docs/gateway-security.md").names
    properties = re.search(r"```properties\n(.*?)```", TEXT, re.DOTALL)
    assert properties
    config = dict(line.split("=", 1) for line in properties[1].splitlines())
    with names["gateway"] as gateway:
        client = admin.AdminClient(
            {
                **config,
                "log_level": 0,
                "sasl.password": "sesame",
                "ssl.ca.location": "server.pem",
                "bootstrap.servers": f"localhost:{gateway.port}",
            }
        )
        assert client.list_topics(timeout=30).topics.keys() == {OFFSETS_TOPIC, TRANSACTIONS_TOPIC}


def test_the_apis_are_those_of_the_table() -> None:
    rows = {row[0]: row[1] for row in table(TABLES, "## APIs and versions")}
    assert rows.items() <= {api.name: f"{api.oldest} to {api.newest}" for api in APIS.values()}.items()


def test_the_settings_are_those_of_the_table() -> None:
    rows = [
        [gateway_setting.name, gateway_setting.value, gateway_setting.meaning.replace("`", "")]
        for gateway_setting in gateway_settings(GatewayConfig())
    ]
    assert table(TABLES, "## Settings") == rows


def test_the_limits_are_those_of_the_table() -> None:
    config = GatewayConfig()
    assert [row[1] for row in table(TABLES, "## Limits")] == [
        f"{LARGEST_OTHER_BYTES >> 20} MiB",
        str(MAX_ITEMS),
        f"{_MAX_EXPANSION} times max.message.bytes",
        f"{config.fetch_memory_bytes >> 20} MiB",
        f"{config.request_timeout_ms // 1000} seconds",
        f"{config.authentication_timeout_ms // 1000} seconds",
    ]
    assert (BYTES_PER_S, _MIN_EXPANSION_LIMIT) == (1 << 20, 32 << 20)
    text = " ".join(TEXT.split())
    assert f"within {STOP_TIMEOUT_S:g} seconds" in text
    assert f"last {PRODUCER_SEARCH_AGE_MS // 60_000} minutes" in text
    assert f"up to {config.linger_bytes >> 20} MB" in text
    assert f"`{OFFSETS_TOPIC}`, in Kafka's own format: {PARTITIONS} partitions" in text
    assert f"`broker.session.timeout.ms` ({config.broker_session_timeout_ms // 1000} seconds by" in text
    assert f"a lease of {LEASE_S:g} seconds" in text
    assert f"`_groups/{ROOT_ID}/{GATEWAYS}`" in text
    assert f"`_groups/{ROOT_ID}/{MAINTENANCE}`" in text
    assert f"after {config.offsets_retention_ms // 86_400_000} days" in text
    assert f"at most {config.transaction_max_timeout_ms // 60_000} minutes" in text
    assert f"for {EXPIRATION_MS // 86_400_000} days is forgotten" in text


def test_the_metrics_are_those_of_the_table(tmp_path: Path) -> None:
    authentication = Authentication(UsersFile(users_file(tmp_path, "alice")))
    acls = AclSettings(authorizer=STANDARD_AUTHORIZER)
    with serving(tmp_path / "root", authentication=authentication, acls=acls) as gateway, Wire(gateway) as wire:
        wire.ask(API_VERSIONS, 0)
        until(lambda: bool(gateway.metrics()[-1].values))
        metrics = gateway.metrics()
    rows = [
        [metric.name + "_total" * (metric.kind == "counter"), ", ".join(metric.values[0][0]), metric.meaning]
        for metric in metrics
    ]
    assert rows == table(TABLES, "## Metrics")


def test_the_systemd_unit_starts_a_command_line_that_serve_accepts() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(next(example.text for example in examples(TEXT) if example.language == "ini"))
    words = shlex.split(unit["Service"]["ExecStart"])
    assert words[0].endswith("/bin/distlog")
    app.command("serve").make_context("distlog serve", words[2:])
    assert (words[1], unit["Service"]["Restart"]) == ("serve", "on-failure")


def test_the_kubernetes_manifest_starts_a_command_line_that_serve_accepts() -> None:
    service, gateways = yaml.safe_load_all(
        next(example.text for example in examples(TEXT) if example.language == "yaml")
    )
    name = service["metadata"]["name"]
    assert gateways["spec"]["serviceName"] == name
    template = gateways["spec"]["template"]
    labels = template["metadata"]["labels"]
    assert labels == service["spec"]["selector"] == gateways["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    assert [*container["command"], container["args"][0]] == ["distlog", "serve"]
    options = app.command("serve").make_context("distlog serve", container["args"][1:]).params
    assert options["advertised"] == (f"$(POD_NAME).{name}.default.svc.cluster.local", options["listen"][1])
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports == {"kafka": options["listen"][1], "metrics": options["metrics_port"]}

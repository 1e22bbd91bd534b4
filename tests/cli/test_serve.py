"""`distlog serve`: a real process, real clients, and signals."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandLine
from fault_proxy import FOREVER, FaultProxy, answer
from forked_programs import GATEWAY, command, run
from gateways import until

import distlog
from distlog.gateway.config import GatewayConfig
from distlog.gateway.gateway_server import warm_up

confluent_kafka = pytest.importorskip("confluent_kafka")
pytest.importorskip("kio")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    """Run the command in this process."""
    line = CommandLine(str(tmp_path), monkeypatch, capsys)
    return lambda address, *options: line.bare("serve", "--root", str(tmp_path), "--listen", address, *options)


def page(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as response:
        return str(response.read().decode())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_requests_in_flight(tmp_path: Path, number: int) -> None:
    distlog.create(str(tmp_path / "clicks"))
    arguments = ("--root", tmp_path, "--listen", "127.0.0.1:0", "--metrics-port", 0, "--json")
    process = command("serve", *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    started = json.loads(process.stdout.readline())
    try:
        producer = confluent_kafka.Producer({"bootstrap.servers": started["listen"], "log_level": 0})
        producer.produce("clicks", b"v")
        assert producer.flush(300) == 0
        until(lambda: 'distlog_gateway_requests_total{api="Produce"} 1.0' in page(started["metrics_port"]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", started["metrics_port"]), timeout=30)
        process.send_signal(number)
        out, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    assert json.loads(out) == {"event": "stopped", "finished": True}
    assert distlog.open(str(tmp_path / "clicks")).end_offsets() == {0: 1}


def test_a_topic_is_refused_as_root(tmp_path: Path) -> None:
    topic = distlog.create(str(tmp_path / "clicks"))
    for options in ((), ("--processes", 2)):
        arguments = ("serve", "--root", topic.url, "--listen", "127.0.0.1:0", *options)
        report = run("distlog", *arguments, module=True, imports=[GATEWAY])
        where = f"use the folder above, {tmp_path}"
        assert (report.returncode, report.stdout, where in report.stderr) == (1, "", True)
    assert not topic.handle.storage.list_folders("__consumer_offsets")


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.invalid:0"])
def test_another_address_than_loopback_needs_a_flag(serve: Any, address: str) -> None:
    process = serve(address)
    assert (process.status, process.out) == (2, "")
    assert "--insecure" in process.err


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--sasl-users", "USERS"], "PLAIN would send passwords unencrypted"),
        (["--ssl-certfile", "CERT", "--ssl-keyfile", "KEY"], "any client that reaches this address"),
        (["--sasl-mechanisms", "SCRAM-SHA-256"], "any client that reaches this address"),
        (["--ssl-certfile", "CERT"], "TLS needs --ssl-certfile and --ssl-keyfile"),
        (["--ssl-client-auth", "required"], "TLS needs --ssl-certfile and --ssl-keyfile"),
        (["--sasl-users", "USERS", "--sasl-mechanisms", "GSSAPI"], "use PLAIN, SCRAM-SHA-256, SCRAM-SHA-512"),
        (["--sasl-users", "USERS", "--sasl-mechanisms", "SCRAM-SHA-256,SCRAM-SHA-512"], "the file of users"),
        (["--sasl-users", "USERS", "--ssl-certfile", "CERT", "--ssl-keyfile", "KEY"], "cannot use the certificate"),
        (["--insecure", "--sasl-users", "USERS"], "the file of users"),
        (
            ["--ssl-certfile", "CERT", "--ssl-keyfile", "KEY", "--ssl-cafile", "CA", "--ssl-client-auth", "required"],
            "cannot use the certificate",
        ),
    ],
)
def test_a_public_address_needs_authentication(serve: Any, options: list[str], wrong: str) -> None:
    process = serve("0.0.0.0:0", *options)
    assert (process.status != 0, process.out) == (True, "")
    assert wrong in process.err


def test_connections_leave_file_descriptors_for_logs() -> None:
    limits = [GatewayConfig(open_files=files).connection_limit for files in (256, 1024, 4000, 1 << 20)]
    assert limits == [128, 512, 2000, 2000]


def test_a_setting_out_of_bounds_is_refused(serve: Any) -> None:
    process = serve("127.0.0.1:0", "--config", "max.connections=-5")
    assert process.status == 2
    assert "max.connections must be between 0 and 2147483647" in process.err


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:port", "127.0.0.1:70000"])
def test_a_wrong_address_is_refused(serve: Any, address: str) -> None:
    assert serve(address).status == 2


def test_a_port_in_use_is_reported(serve: Any) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        process = serve(f"127.0.0.1:{listener.getsockname()[1]}")
    assert process.status == 1
    assert "cannot listen" in process.err


def ended(serve: Any, root: str, options: dict[str, Any]) -> str:
    """Return the one line of error with which a gateway fails to start."""
    words = [word for name, value in options.items() for word in ("--storage", f"{name}={value}")]
    process = serve("127.0.0.1:0", "--root", root, *words)
    assert (process.status, process.out) == (1, "")
    return str(process.err.splitlines()[-1])


@pytest.mark.s3
def test_a_missing_or_impossible_bucket_is_refused(serve: Any, s3_server: Any) -> None:
    assert "NoSuchBucket (HTTP 404)" in ended(serve, "s3://no-such-bucket/logs", s3_server.options)
    assert "ParamValidationError" in ended(serve, "s3://No_Bucket!/logs", s3_server.options)


@pytest.mark.s3
def test_a_store_that_answers_everything_with_404_is_refused(serve: Any, s3_server: Any) -> None:
    with FaultProxy(s3_server.endpoint) as proxy:
        proxy.inject("*", answer(404, "404"), times=FOREVER)
        address = s3_server.address()
        reason = ended(serve, address.url, {**address.options, "endpoint_url": proxy.url})
    assert "bucket or container does not exist" in reason


@pytest.mark.s3
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_bucket_without_rights_is_refused(serve: Any, s3_server: Any, method: str) -> None:
    with FaultProxy(s3_server.endpoint) as proxy:
        proxy.inject(method, answer(403, "AccessDenied"), times=FOREVER)
        options = {**s3_server.options, "endpoint_url": proxy.url}
        assert "AccessDenied (HTTP 403)" in ended(serve, s3_server.address().url, options)


def test_a_new_root_is_reported(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        for name, is_reported in (("", False), ("lgos", True), ("file", False)):
            root = str(tmp_path / name)
            ended = serve(f"127.0.0.1:{listener.getsockname()[1]}", "--root", root)
            assert ended.status == 1
            assert (f"distlog: {root} does not exist: creating it as a new root\n" in ended.err) is is_reported


def test_an_impossible_folder_is_refused(serve: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in ended(serve, str(tmp_path / "file"), {})


def test_a_clock_that_is_set_back_during_the_warm_up_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(int(1.7e18), 0, -7200 * 10**9))
    monkeypatch.setattr(time, "time_ns", lambda: next(times))
    warm_up()

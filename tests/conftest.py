"""Settings of all tests, and storages to test against: a local folder, memory, and an S3 server.

The S3 server is moto's, inside this process, unless DISTLOG_TEST_S3_ENDPOINT names another, with
DISTLOG_TEST_S3_KEY, DISTLOG_TEST_S3_SECRET and DISTLOG_TEST_S3_BUCKET, whose bucket must exist.
"""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import memory_files
import moto_server
import pytest
from addresses import Address, S3Server
from command_line import CommandLine
from docs_pages import Reader
from full_disk import disk as disk
from histories import commit_log, topic_storage, topic_with_checkpoints
from hypothesis import settings
from partition_logs import folder as folder
from partition_logs import rebooted as rebooted
from partition_logs import release_dead
from searches import FACTOR
from spark_python import forked_python

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.snapshot import Snapshot
from distlog.core.storage.storage import Storage

# The first example compiles kernels, and other tests run concurrently, so examples have no deadline.
# The suite tries the same examples each time, so that only a change can break it; `make soak` tries new ones.
settings.register_profile("distlog", deadline=None, max_examples=40 * FACTOR, derandomize=FACTOR == 1)
settings.load_profile("distlog")

# Every Java of the tests lives for seconds: what it compiles with its best compiler would never pay off. Where there
# is an archive of Spark's classes (`make spark-classes`), a start takes half the CPU; an old one is passed over. With
# one compiler there is room for 48 MB of code, which Java cleans all the time, and compiles again what it threw out.
_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
_CLASSES = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "spark-classes.jsa")
_ARCHIVE = f" -XX:SharedArchiveFile={_CLASSES} -Xlog:disable" if _CLASSES.exists() else ""
os.environ.setdefault("SPARK_SUBMIT_OPTS", _JAVA + _ARCHIVE)
os.environ.setdefault("SPARK_LAUNCHER_OPTS", _JAVA)

# Each worker and each program that it starts would compile the library and tests again: a minute of CPU in a run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A sync of a disk takes milliseconds, and tests make tens of thousands; what they kill are processes, not machines.
# `make soak` stays on the disk, and so does who says so by this variable of pytest's.
_MEMORY = "/dev/shm"
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)

# By default Python collects garbage after 700 new objects, and everything when a quarter is new: that was two thirds
# of the parsing of sources, and a twentieth of all tests.
gc.set_threshold(10_000, 20, 20)

# Tests in the background may inherit an ignored SIGINT, and then no program that they start could be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, and those that share a session of Spark to the same one.

    Spark tests that start their own driver are excluded, or this worker would be the last one by minutes.
    By file, since the scheduler sees no marks. (`--dist loadgroup` does nothing: pytest-xdist 3.8 with pytest 9.2.)
    """
    from xdist.scheduler import LoadScopeScheduling

    texts = {path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")}
    shares = re.compile(r"\bspark: |\"spark\"|\bjob as job\b")
    spark = {name for name, text in texts.items() if "pytest.mark.spark" in text and shares.search(text)}

    class SparkTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::")[0]
            return "spark" if file.rsplit("/")[-1] in spark else file

    # in the order in which they are collected, see below
    config.option.loadscopereorder = False
    return SparkTogether(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collect no garbage during the collection of tests, and never visit its objects afterwards: nearly all stay.

    One look would take a tenth of the collection of tests, in each worker, for 130,000 objects.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Have the workers begin with what takes longest, or one would wait for the other in the end."""
    if hasattr(config, "workerinput"):
        ranks: dict[Path, int] = {}
        for item in items:
            ranks[item.path] = min(ranks.get(item.path, 2), _rank(item))
        items.sort(key=lambda item: ranks[item.path])


def _rank(item: pytest.Item) -> int:
    return 0 if item.get_closest_marker("spark") else 1 if item.get_closest_marker("long") else 2


@pytest.fixture(autouse=True)
def nothing_is_left_over() -> Iterator[None]:
    """No descriptors of processes that a story of crashes ended, which are thousands, and no files in memory."""
    yield
    release_dead()
    memory_files.hold()


@pytest.fixture(scope="session", autouse=True)
def copies_of_indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Copies of remote indexes go to a folder of this run: in the user's they would stay, and each topic lists them.

    A test that has a folder of its own for temporary files has them there.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("copies")))
        yield


@pytest.fixture(scope="module")
def s3_server(running_s3: S3Server) -> Iterator[S3Server]:
    """An S3 server that forgets everything after each file: a listing of moto's visits every key."""
    yield running_s3
    if "DISTLOG_TEST_S3_ENDPOINT" not in os.environ:
        restart(running_s3)


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    pytest.importorskip("s3fs")
    if endpoint := os.environ.get("DISTLOG_TEST_S3_ENDPOINT"):
        yield S3Server(endpoint, *(os.environ[f"DISTLOG_TEST_S3_{name}"] for name in ("KEY", "SECRET", "BUCKET")))
        return
    pytest.importorskip("moto.server")
    server = moto_server.started()
    host, port = server.get_host_and_port()
    s3_server = S3Server(f"http://{host}:{port}", "a-test-key", "a-test-secret", "distlog-test")
    restart(s3_server)
    yield s3_server
    server.stop()


def restart(moto: S3Server) -> None:
    for method, path in (("POST", "moto-api/reset"), ("PUT", moto.bucket)):
        urlopen(Request(f"{moto.endpoint}/{path}", method=method), timeout=60).close()


@pytest.fixture
def s3_url(s3_server: S3Server) -> Address:
    return s3_server.address()


@pytest.fixture
def memory_url() -> Address:
    return Address(f"memory://{uuid.uuid4().hex}", {})


@pytest.fixture
def storage(memory_url: Address) -> Storage:
    """The folder of a topic, in memory; tests that want another have a fixture of their own."""
    return topic_storage(memory_url.url)


@pytest.fixture
def log(storage: Storage) -> CommitLog:
    return commit_log(storage)


@pytest.fixture
def old(storage: Storage) -> Snapshot:
    """The head of a topic with 25 commits and checkpoints at 10 and 20."""
    return topic_with_checkpoints(storage)


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def storage_url(request: pytest.FixtureRequest, tmp_path: Path) -> Address:
    """A fresh, empty folder on each kind of storage in turn."""
    if request.param == "local":
        return Address(str(tmp_path / "root"), {})
    address: Address = request.getfixturevalue(f"{request.param}_url")
    return address


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A session of two cores in which a task may fail twice; its files are in a temporary folder."""
    spark_session = pytest.importorskip("distlog.spark").session
    folder = tmp_path_factory.mktemp("spark")
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    with pytest.MonkeyPatch.context() as patch:
        for name, program in forked_python().items():
            patch.setenv(name, program)
        session = _session(spark_session, folder)
    yield session
    session.stop()


def _session(spark_session: Any, folder: Path) -> Any:
    return spark_session(
        "tests",
        **{
            "spark.master": "local[2,3]",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
        },
    )


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(str(tmp_path / "clicks"), monkeypatch, capsys)


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Reader:
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path, capsys)


@pytest.fixture
def filled(cli: CommandLine) -> CommandLine:
    """One partition with five records, v0 to v4, at 1001 to 5005 ms."""
    cli.ok("create")
    lines = [json.dumps({"key": f"k{n}", "value": f"v{n}", "timestamp": 1001 * (n + 1)}) for n in range(5)]
    cli.ok("append", "--format", "records", stdin="".join(f"{line}\n" for line in lines).encode())
    return cli

"""The programs: what each needs, how it is fetched and built below the cache, and its command."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
#: The version of the broker, of Kafka's tools and of the newest Java client.
KAFKA = "4.4.0"
#: The version of node-rdkafka, whose package has librdkafka's header.
_HEADERS = "3.6.1"


class MissingError(Exception):
    """Something that a program needs is not on this machine."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a language, with the version of its client; `prepared` gives its command."""

    name: str
    language: str
    version: str
    prepared: Callable[[Path, str], list[str]]

    def command(self, cache: Path) -> list[str]:
        """Fetch and build what it needs below `cache`. Raises MissingError."""
        return self.prepared(cache, self.version)


def jars(cache: Path, version: str, profile: str = "kafka") -> Path:
    """A folder with Kafka's jars of a version, fetched once. Raises MissingError."""
    folder = cache / f"{profile}-{version}"
    if not folder.is_dir():
        marker = cache / f"{folder.name}.begun"
        maven = [_needed("mvn"), "-q", "-B", f"-Dmaven.repo.local={cache / 'maven'}", f"-Dkafka.version={version}"]
        goal = ["-f", str(FOLDER / "java" / "pom.xml"), "-P", profile, "dependency:copy-dependencies"]
        _run([*maven, *goal, f"-DoutputDirectory={marker}"])
        marker.rename(folder)
    return folder


def java(jars: Path, *arguments: str) -> list[str]:
    """A command of Java with all jars of a folder; compiled quickly rather than well."""
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ["java", *options, "-cp", f"{jars}/*{os.pathsep}{jars}/classes", *arguments]


def _java(profile: str) -> Callable[[Path, str], list[str]]:
    def prepared(cache: Path, version: str) -> list[str]:
        folder = jars(cache, version, profile)
        sources = sorted(map(str, (FOLDER / "java").glob("*.java")))
        _run([_needed("javac"), "-nowarn", "-d", str(folder / "classes"), "-cp", f"{folder}/*", *sources])
        return java(folder, "Peer")

    return prepared


def _python(file: str) -> Callable[[Path, str], list[str]]:
    def prepared(cache: Path, version: str) -> list[str]:
        return [sys.executable, str(FOLDER / "python" / file)]

    return prepared


def _tools(cache: Path, version: str) -> list[str]:
    return [sys.executable, str(FOLDER / "tools.py"), str(jars(cache, version))]


def _go(program: str) -> Callable[[Path, str], list[str]]:
    def prepared(cache: Path, version: str) -> list[str]:
        built = cache / "go" / program
        folders = {"GOPATH": cache / "go", "GOCACHE": cache / "go" / "cache", "GOMODCACHE": cache / "go" / "modules"}
        flags = {"GOFLAGS": "-mod=mod -modcacherw", "GOTOOLCHAIN": "local"}
        environment = {**os.environ, **{name: str(value) for name, value in folders.items()}, **flags}
        _run([_needed("go"), "build", "-o", str(built), f"./{program}"], cwd=FOLDER / "go", env=environment)
        return [str(built)]

    return prepared


def _node(file: str, package: str) -> Callable[[Path, str], list[str]]:
    def prepared(cache: Path, version: str) -> list[str]:
        folder, manifest = cache / "node", f"node_modules/{package}/package.json"
        folder.mkdir(parents=True, exist_ok=True)
        npm = [_needed("npm"), "install", "--silent", "--no-audit", "--no-fund", "--cache", str(cache / "npm")]
        if not (folder / manifest).exists():
            _run([*npm, "--prefix", str(folder), f"{package}@{version}"], cwd=folder)
        for source in (FOLDER / "node").glob("*.mjs"):
            shutil.copy(source, folder)
        return [_needed("node"), str(folder / file)]

    return prepared


def _rust(cache: Path, version: str) -> list[str]:
    target = cache / "rust"
    environment = {**os.environ, "CARGO_HOME": str(cache / "cargo"), "CARGO_TARGET_DIR": str(target)}
    _run([_needed("cargo"), "build", "--quiet", "--locked"], cwd=FOLDER / "rust", env=environment)
    return [str(target / "debug" / "peer")]


def _c(cache: Path, version: str) -> list[str]:
    """A program for the library that confluent-kafka has; an npm package with the sources has the header."""
    folder, header = cache / "c", "package/deps/librdkafka/src/rdkafka.h"
    (folder / "librdkafka").mkdir(parents=True, exist_ok=True)
    if not (folder / "librdkafka" / "rdkafka.h").exists():
        npm = [_needed("npm"), "pack", "--silent", "--cache", str(cache / "npm"), f"node-rdkafka@{_HEADERS}"]
        _run(npm, cwd=folder)
        with tarfile.open(folder / f"node-rdkafka-{_HEADERS}.tgz") as archive:
            data = archive.extractfile(header)
            assert data is not None
            (folder / "librdkafka" / "rdkafka.h").write_bytes(data.read())
    spec = importlib.util.find_spec("confluent_kafka")
    assert spec is not None
    assert spec.origin is not None
    (library,) = (Path(spec.origin).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so.1")
    options = ["-O1", f"-I{folder}", "-o", str(folder / "peer"), str(FOLDER / "c" / "peer.c"), str(library)]
    _run([_needed("cc"), *options, f"-Wl,-rpath,{library.parent}"])
    return [str(folder / "peer")]


def _needed(name: str) -> str:
    command = shutil.which(name)
    if command is None:
        raise MissingError(f"no {name} here")
    return command


def _run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    process = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)}: {(process.stdout + process.stderr)[-4000:]}")


#: All programs, in the order of their runs.
PROGRAMS = (
    Program("java-4.4", "java", KAFKA, _java("kafka")),
    Program("java-4.0", "java", "4.0.2", _java("clients")),
    Program("java-3.9", "java", "3.9.2", _java("clients")),
    Program("kafka-tools", "java", KAFKA, _tools),
    Program("franz-go", "go", "1.22.3", _go("franz")),
    Program("confluent-kafka", "python", "2.16.1", _python("confluent.py")),
    Program("librdkafka-c", "c", "2.16.1", _c),
    Program("kafka-python", "python", "3.0.12", _python("kafka_python.py")),
    Program("aiokafka", "python", "0.14.0", _python("aio_kafka.py")),
    Program("sarama", "go", "1.61.1", _go("sarama")),
    Program("kafka-go", "go", "0.4.51", _go("kafkago")),
    Program("rskafka", "rust", "0.6.0", _rust),
    Program("kafkajs", "node", "2.2.4", _node("kafkajs.mjs", "kafkajs")),
)

"""Commands that maintain a topic, and two that check a store and this machine."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import distlog
from distlog import __version__
from distlog.cli.options import DryRun, Json, StorageOptions, Url, usage
from distlog.console import arguments, output
from distlog.console.output import Report, Summary, print_report, status_of
from distlog.core import DISTRIBUTION, extra
from distlog.core.display import Progress, counted, size_text
from distlog.core.errors import DistlogError, TopicIdWarning
from distlog.core.format.kernels.native import COMPILED, code_cache
from distlog.core.maintain.vacuum import vacuum as vacuum_topic
from distlog.core.maintain.verify import rebuild_indexes
from distlog.core.maintain.verify import verify as verify_topic
from distlog.core.opening import copies_in, naming_topics, topics
from distlog.core.segments.segment_reader import topic_log
from distlog.core.storage.storage import Storage
from distlog.core.storage.storage import check_store as store_report
from distlog.core.times import now_ms

OK, WARNING, ERROR = "ok", "warning", "error"
#: The packages of extras that no user of distlog needs.
_DEVELOPER_EXTRA = re.compile(r"""extra *== *["'](test|docs|bench)["']""")
_DEFAULT_OPEN_FILES = 1024
#: PySpark 4 needs at least this version.
_OLDEST_JAVA = 17
_JAVA_OPTION_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
_TIMEOUT_S = 10
_JAVA_ADVICE = f"install Java {_OLDEST_JAVA} or newer, and set JAVA_HOME to its folder"
#: A program that imports data source formats as Spark does. Its arguments, `sys.prefix` and an origin, identify the
#: distlog of this process. It also imports the data source of any other distlog; `_pyspark` imports this one's.
_LIST_FORMATS = """
import sys

# -c adds the current folder: its files must not run
sys.path[:] = [folder for folder in sys.path if folder]

import json
from importlib.util import find_spec
from pkgutil import iter_modules

formats, failed = [module.name for module in iter_modules() if module.name.startswith("pyspark_")], {}
distlog, module = find_spec("distlog"), find_spec("pyspark_distlog")
is_same = distlog is not None and [sys.prefix, distlog.origin] == sys.argv[1:]
names = [name for name in formats if name != "pyspark_distlog"]
# the data source itself, since pyspark_distlog can be imported even if the data source cannot
for name in names + ([] if is_same or distlog is None else ["distlog.spark.data_source"]):
    try:
        __import__(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps([formats, failed, distlog and distlog.origin, module and module.origin]))
"""
_MIN_FREE = 0.05  # if a smaller fraction of a local disk is free, by bytes or inodes, `doctor` warns


def retention(url: Url, *, dry_run: DryRun = False, storage: StorageOptions, as_json: Json = False) -> None:
    """Delete segments past retention.ms or retention.bytes.

    Vacuum deletes the files later.
    """
    _print_and_exit(distlog.open(url, storage_options=dict(storage)).retention(dry_run=dry_run), as_json)


def delete_records(
    url: Url,
    *,
    offsets: Annotated[
        list[Any],
        typer.Option(
            "--before",
            metavar="[PARTITION:]OFFSET",
            parser=usage(arguments.partition_offset),
            help="Delete the records before this offset; -1 deletes all. May be repeated.",
        ),
    ],
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Apply a --before without a partition to partition N.")
    ] = None,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Delete the records before an offset."""
    starts: dict[int, int] = {}
    for prefix, offset in offsets:
        number = partition if prefix is None else prefix
        if number is None:
            raise typer.BadParameter("write PARTITION:OFFSET, or add --partition", param_hint="--before")
        if number in starts:
            raise typer.BadParameter(f"partition {number} is set twice: set it once", param_hint="--before")
        starts[number] = offset
    _print_and_exit(distlog.open(url, storage_options=dict(storage)).delete_records(starts), as_json)


def compact(
    url: Url,
    *,
    dry_run: DryRun = False,
    memory: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="BYTES",
            show_default=False,
            help="Use up to BYTES of memory to merge small segments; more means fewer requests. Default: the "
            "minimum, 360 MiB on an object store.",
        ),
    ] = 0,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Keep the last record of each key, or merge small segments.

    If the topic's cleanup.policy contains compact, the last record of each key stays. Otherwise small segments are
    merged. The exit status is 1 if a partition or a merge fails.
    """
    _print_and_exit(distlog.open(url, storage_options=dict(storage)).compact(dry_run=dry_run, memory=memory), as_json)


def rebuild_index(
    url: Url,
    *,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also rebuild valid indexes that differ from the topic's current settings."),
    ] = False,
    dry_run: DryRun = False,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Rebuild bad and missing indexes from the logs.

    The exit status is 1 if a log is damaged.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    with _progress("rebuilding", topic) as bar:
        # `snapshot` has the sealed segments; `checked_snapshot`, which `verify` reads, also has active ones
        report, _ = rebuild_indexes(topic.handle, topic.snapshot, force=force, dry_run=dry_run, on_progress=bar.add)
    _print_and_exit(report, as_json)


def repair(url: Url, *, dry_run: DryRun = False, storage: StorageOptions, as_json: Json = False) -> None:
    """Truncate damaged active segments.

    Use it when an active segment refuses appends. A crash does not cause this. The records after the damage are lost,
    and their offsets are reused. If you have a copy of the file, restore the copy instead.
    """
    _print_and_exit(distlog.open(url, storage_options=dict(storage)).repair(dry_run=dry_run), as_json)


def verify(url: Url, *, storage: StorageOptions, as_json: Json = False) -> None:
    """Check every checksum, record, index and commit.

    Nothing is changed. The exit status is 1 if a check fails.
    """
    topic = distlog.open(url, storage_options=dict(storage))
    with _progress("verifying", topic) as bar:
        # `topic.verify` would show no progress
        report = verify_topic(topic.handle, topic.checked_snapshot, on_progress=bar.add)
    print_report(report, as_json=as_json)
    if not as_json:
        for anomaly in report.topic_anomalies:
            print(output.text(str(anomaly)))
    raise typer.Exit(status_of(report))


def _progress(label: str, topic: distlog.Topic) -> Progress:
    sizes = (int(state.segments.log_bytes.sum()) for state in topic.checked_snapshot.partitions)
    return Progress(label, total_bytes=sum(sizes))


def vacuum(url: Url, *, dry_run: DryRun = False, storage: StorageOptions, as_json: Json = False) -> None:
    """Delete files that nothing refers to.

    It also works on a dropped topic.
    """
    topic_folder = Storage(url, dict(storage))
    # `distlog.open` would refuse a dropped topic. Like `open`, name the topics in the error if the folder has any
    with naming_topics(topic_folder):
        report = vacuum_topic(topic_folder, topic_log(topic_folder), dry_run=dry_run)
    _print_and_exit(report, as_json)


def _print_and_exit(report: Report, as_json: bool) -> NoReturn:
    print_report(report, as_json=as_json)
    raise typer.Exit(status_of(report))


def check_store(
    url: Annotated[str, typer.Argument(metavar="URL", help="Folder for topics: s3://bucket/logs.")],
    *,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Check that a store can hold topics, and measure it.

    It tests conditional writes, ranges, listings, deletes and the clock, and deletes what it writes.
    """
    _print_and_exit(store_report(Storage(url, dict(storage)), now_ms, time.monotonic), as_json)


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="URL", help="Also check this folder for topics: s3://bucket/logs.")
    ] = None,
    *,
    storage: StorageOptions,
    as_json: Json = False,
) -> None:
    """Check this machine, and a store.

    It checks Python, packages, Java, Spark and limits, and with a URL the store and the topics in it. It deletes what
    it writes to the store. The exit status is 1 if a check fails.
    """
    findings = [*_machine_findings(), *(() if url is None else _store_findings(url, dict(storage)))]
    counts = {status: sum(finding.status == status for finding in findings) for status in (ERROR, WARNING)}
    problems = [counted(count, status) for status, count in counts.items() if count]
    rows = [finding.row() for finding in findings]
    report = Summary(", ".join(problems) or "all checks passed", {"ok": not counts[ERROR], "checks": rows}, rows)
    _print_and_exit(report, as_json)


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    status: str
    result: str
    advice: str = ""

    def row(self) -> dict[str, str]:
        return {"check": self.check, "status": self.status, "found": self.result, "advice": self.advice}


def _machine_findings() -> Iterator[Finding]:
    yield Finding("Python", OK, f"{sys.version.split()[0]} at {sys.executable}, with distlog {__version__}")
    yield _packages()
    yield _kernels()
    yield _descriptors()
    spec = find_spec("pyspark")
    pyspark = None if spec is None or spec.origin is None else Path(spec.origin).parent
    # the client of Spark Connect has no jars, and starts no Java
    has_jars = pyspark is not None and ("SPARK_HOME" in os.environ or (pyspark / "jars").is_dir())
    yield _java(is_needed=has_jars and "SPARK_REMOTE" not in os.environ)
    if pyspark is None:
        yield Finding("PySpark", OK, f"not installed; only Spark needs it: pip install {extra('spark')}")
    else:
        yield _pyspark(pyspark)
        yield _spark_format()


def _packages() -> Finding:
    """List the versions of the packages that distlog uses. `pip check` checks whether they fit together."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        result = "distlog is imported but not installed: its packages are unknown"
        return Finding("packages", WARNING, result, f"pip install {DISTRIBUTION} here, for this check")
    names = dict.fromkeys(re.split(r"[^\w.-]", line)[0] for line in lines if not _DEVELOPER_EXTRA.search(line))
    versions = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return Finding("packages", OK, ", ".join(versions))


def _kernels() -> Finding:
    cache = code_cache()
    if not COMPILED:
        return Finding("kernels", WARNING, "run as plain Python, about 100 times slower", "unset NUMBA_DISABLE_JIT")
    if cache.folder is None:
        advice = "set NUMBA_CACHE_DIR to a writable folder: until then each process compiles"
        return Finding("kernels", WARNING, f"no folder can store compiled code: {'; '.join(cache.reasons)}", advice)
    # the folder may not exist yet
    stat = next(path for path in (cache.folder, *cache.folder.parents) if path.exists()).stat()
    folder = f"{cache.folder} of user {stat.st_uid}, mode {stat.st_mode & 0o777:o}"
    if not cache.compiled:
        result = f"cold: no compiled code in {folder}"
        return Finding("kernels", WARNING, result, "run distlog warmup, or wait at the first use")
    return Finding("kernels", OK, f"warm: {cache.compiled} of {cache.kernels} compiled in {folder}")


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = [("unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}") for limit in (soft, hard)]
    result = f"{limits[0]}; distlog serve raises its limit to {limits[1]}"
    if soft == resource.RLIM_INFINITY or soft >= _DEFAULT_OPEN_FILES:
        return Finding("open files", OK, result)
    return Finding("open files", WARNING, result, f"raise the limit: ulimit -n {_DEFAULT_OPEN_FILES} or more")


def _java(*, is_needed: bool) -> Finding:
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if java is None or not os.access(java, os.X_OK):
        if not is_needed:
            return Finding("Java", OK, f"none in {where}; only Spark needs it")
        return Finding("Java", ERROR, f"none in {where}", _JAVA_ADVICE)
    status = ERROR if is_needed else OK
    # Java prints these variables, which may hold passwords, next to its version
    environment = {name: value for name, value in os.environ.items() if name not in _JAVA_OPTION_VARIABLES}
    outcome = _output_of([java, "-version"], environment)
    version_text = outcome if isinstance(outcome, str) else f"{outcome.stdout}{outcome.stderr}"
    # 17.0.2, or 1.8.0 for Java 8
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', version_text)
    if version is None:
        reason = f"{java} does not print its version: {_one_line(version_text)[:200]}"
        return Finding("Java", status, reason, _JAVA_ADVICE)
    result = f"{version[1]} at {java}, by {'JAVA_HOME' if home else 'PATH'}"
    if int(version[2]) < _OLDEST_JAVA:
        return Finding("Java", status, result, _JAVA_ADVICE if is_needed else "")
    return Finding("Java", OK, result)


def _output_of(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | str:
    """Run a program; returns its output, or the reason why it could not run."""
    try:
        return subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT_S} s"
    except OSError as error:
        return str(error)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _pyspark(pyspark: Path) -> Finding:
    try:
        text = (pyspark / "version.py").read_text(encoding="utf-8")
        version = re.findall(r"^__version__.*?[\"'](.+?)[\"']", text, re.MULTILINE)[0]
        from distlog.spark import data_source
    except Exception as error:
        result = f"distlog.spark cannot be imported with {pyspark}: {type(error).__name__}: {error}"
        return Finding("PySpark", ERROR, result, f"pip install {extra('spark')}")
    del data_source  # only the import is a check
    if (home := os.environ.get("SPARK_HOME")) is not None:
        jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
        if not jars:
            return Finding("PySpark", ERROR, f"SPARK_HOME={home} has no Spark", "unset SPARK_HOME, or correct it")
        home_version = jars[0].stem.rpartition("-")[2]
        if home_version.split(".")[:2] != version.split(".")[:2]:
            result = f"{version} would start Spark {home_version} of SPARK_HOME={home}"
            return Finding("PySpark", ERROR, result, f"unset SPARK_HOME, or pip install pyspark=={home_version}")
    return Finding("PySpark", OK, f"{version} at {pyspark}")


def _spark_format() -> Finding:
    """Check that a plain Spark session finds the format in the Python that it runs."""
    check = 'format("distlog")'
    variable = next((name for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON") if os.environ.get(name)), None)
    python = os.environ[variable] if variable else "python3"
    interpreter = f"{shutil.which(python) or python} (by {variable or 'PATH'})"
    advice = f"set PYSPARK_PYTHON={sys.executable}, or let distlog.spark.session make the session"
    spec = find_spec("distlog")
    outcome = _output_of([python, "-c", _LIST_FORMATS, sys.prefix, str(spec and spec.origin)], os.environ)
    try:
        # the last line, since modules may print when they are imported
        last_line = "" if isinstance(outcome, str) else outcome.stdout.splitlines()[-1]
        formats, import_errors, library, module = json.loads(last_line)
    except (ValueError, LookupError):
        reason = outcome if isinstance(outcome, str) else _one_line(outcome.stderr or outcome.stdout)
        return Finding(check, WARNING, f"{interpreter}, which Spark would run, fails: {reason[-200:]}", advice)
    if library is None:
        return Finding(check, WARNING, f"{interpreter}, which Spark would run, has no distlog", advice)
    if import_errors:
        name, reason = next(iter(import_errors.items()))
        if not name.startswith("distlog"):
            advice = f"repair or remove {name}: Spark finds no format while this import fails"
        return Finding(check, WARNING, f"{interpreter} cannot import {name}: {reason}", advice)
    if "pyspark_distlog" not in formats:
        problem = f"is installed where Spark cannot find it: {module}" if module else "is not next to distlog"
        advice = "call distlog.spark.register(spark), install distlog by pip, or set PYTHONPATH"
        return Finding(check, WARNING, f"the module pyspark_distlog {problem}", advice)
    return Finding(check, OK, f"a plain session finds it in {module} by {interpreter}")


def _store_findings(url: str, options: dict[str, Any]) -> Iterator[Finding]:
    try:
        storage = Storage(url, options)
        if storage.is_local:
            yield from _disk_space(storage.local_path(""))
        report = store_report(storage, now_ms, time.monotonic, is_measured=False)
    except (DistlogError, OSError, ModuleNotFoundError) as error:
        yield Finding("store", ERROR, str(error))
        return
    for result in report.checks:
        if result.ok is not None:  # None for a check that was skipped
            yield Finding(f"store: {result.name}", OK if result.ok else ERROR, result.about)
    yield from _topic_findings(url, options)


def _topic_findings(url: str, options: dict[str, Any]) -> Iterator[Finding]:
    errors: dict[str, DistlogError] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopicIdWarning)
            opened_topics = topics(url, options, errors)
    except DistlogError as error:
        yield Finding("topics", ERROR, str(error))
        return
    yield Finding("topics", OK, f"{counted(len(opened_topics), 'topic')} can be opened")
    for name, topic_error in errors.items():
        yield Finding(f"topics: {name}", ERROR, str(topic_error), f"distlog verify {url.rstrip('/')}/{name}")
    for name, text in copies_in(opened_topics).items():
        yield Finding(f"topics: {name}", WARNING, text, f"distlog alter {url.rstrip('/')}/{name} --new-id")


def _disk_space(folder: str) -> Iterator[Finding]:
    """Check the free space and inodes of the disk of a folder, which may not exist yet."""
    path = next(path for path in (Path(folder), *Path(folder).parents) if path.exists())
    disk = os.statvfs(path)
    # some file systems, such as btrfs, do not count inodes: their total is 0
    for name, free, total, free_text in (
        ("space", disk.f_bavail, disk.f_blocks, size_text(disk.f_bavail * disk.f_frsize)),
        ("inodes", disk.f_favail, disk.f_files, f"{disk.f_favail:,}"),
    ):
        if total:
            status = ERROR if free == 0 else (WARNING if free < _MIN_FREE * total else OK)
            advice = "run distlog vacuum, or free space" if status != OK else ""
            yield Finding(name, status, f"{free_text} free of {path}, {free / total:.0%}", advice)

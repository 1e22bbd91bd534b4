"""`distlog doctor`: the needs of distlog on a machine and of a store, their state, and what to do."""

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
from typing import Annotated, Any

import typer

from distlog import __version__
from distlog.cli.options import Json, Storage
from distlog.console.output import Summary, print_report, status_of
from distlog.core import DISTRIBUTION
from distlog.core.display import counted, size_text
from distlog.core.errors import DistlogError, TopicIdWarning
from distlog.core.kernels.native import COMPILED, kept_code
from distlog.core.optional import extra
from distlog.core.storage.storage import Storage as Folder
from distlog.core.storage.store_check import check_store
from distlog.core.times import now_ms
from distlog.core.topics.open_topic import copies_in, topics

OK, WARNING, ERROR = "ok", "warning", "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and if that is not well, what to do."""

    check: str
    status: str
    found: str
    advice: str = ""

    def row(self) -> dict[str, str]:
        """As it is printed."""
        return {"check": self.check, "status": self.status, "found": self.found, "advice": self.advice}


def doctor(
    url: Annotated[
        str | None, typer.Argument(metavar="[URL]", help="Also try a folder for topics, as s3://bucket/logs.")
    ] = None,
    *,
    storage: Storage,
    as_json: Json = False,
) -> None:
    """Look for what is wrong with this machine, or with a store.

    It looks at Python, packages, Java, Spark and limits, and with a URL at the store and the topics below the URL. It
    changes nothing: what it writes to the store it deletes again. The exit status is 1 if a check is an error.
    """
    findings = [*_findings_here(), *(() if url is None else _findings_at(url, dict(storage)))]
    counts = {each: sum(finding.status == each for finding in findings) for each in (ERROR, WARNING)}
    said = [counted(count, status) for status, count in counts.items() if count]
    rows = [finding.row() for finding in findings]
    report = Summary(", ".join(said) or "all well", {"ok": not counts[ERROR], "checks": rows}, rows)
    print_report(report, as_json=as_json)
    raise typer.Exit(status_of(report))


def _findings_here() -> Iterator[Finding]:
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
        yield Finding("PySpark", OK, f"not installed, and Spark alone needs it: pip install {extra('spark')}")
    else:
        yield _pyspark(pyspark)
        yield _spark_format()


#: The packages of extras that no user of distlog needs.
_OF_DEVELOPERS = re.compile(r"""extra *== *["'](test|docs|bench)["']""")


def _packages() -> Finding:
    """The versions of the installed packages that distlog uses; whether they fit together is for `pip check`."""
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        found = "distlog is imported, but not installed: it states no packages"
        return Finding("packages", WARNING, found, f"pip install {DISTRIBUTION} here, for this check")
    names = dict.fromkeys(re.split(r"[^\w.-]", line)[0] for line in lines if not _OF_DEVELOPERS.search(line))
    versions = []
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            versions.append(f"{name} {metadata.version(name)}")
    return Finding("packages", OK, ", ".join(versions))


def _kernels() -> Finding:
    kept = kept_code()
    if not COMPILED:
        return Finding("kernels", WARNING, "run as plain Python, some 100 times as long", "unset NUMBA_DISABLE_JIT")
    if kept.folder is None:
        advice = "set NUMBA_CACHE_DIR to a folder of your own: each process compiles again"
        return Finding("kernels", WARNING, f"no folder keeps their code: {'; '.join(kept.reasons)}", advice)
    status = next(path for path in (kept.folder, *kept.folder.parents) if path.exists()).stat()
    place = f"{kept.folder} of user {status.st_uid}, mode {status.st_mode & 0o777:o}"
    if not kept.compiled:
        return Finding("kernels", WARNING, f"cold: no code is in {place}", "distlog warmup, or the first use does it")
    return Finding("kernels", OK, f"warm: code of {kept.compiled} of {kept.kernels} is in {place}")


#: The limit that most systems begin with.
_USUAL_FILES = 1024


def _descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    shown = [("unlimited" if each == resource.RLIM_INFINITY else f"{each:,}") for each in (soft, hard)]
    found = f"{shown[0]}, and {shown[1]} for distlog serve, which raises its own"
    if soft == resource.RLIM_INFINITY or soft >= _USUAL_FILES:
        return Finding("open files", OK, found)
    return Finding("open files", WARNING, found, f"ulimit -n {_USUAL_FILES} or more: half are for partitions' logs")


#: PySpark 4 runs on no older Java.
_OLDEST_JAVA = 17
_OPTIONS_OF_JAVA = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
#: The time of a program to say what it is.
_TIMEOUT_S = 10
_JAVA_ADVICE = f"install Java {_OLDEST_JAVA} or newer, and set JAVA_HOME to its folder"


def _java(*, is_needed: bool) -> Finding:
    """The Java that Spark would start: of JAVA_HOME, else of PATH."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    where = f"JAVA_HOME={home}" if home else "PATH"
    if not is_needed and not (java and os.access(java, os.X_OK)):
        return Finding("Java", OK, f"none in {where}, and Spark alone needs one")
    fault = ERROR if is_needed else OK
    if java is None or not os.access(java, os.X_OK):
        return Finding("Java", fault, f"none in {where}", _JAVA_ADVICE)
    # it repeats these variables, which may hold passwords, and tells the version as well without them
    quiet = {name: value for name, value in os.environ.items() if name not in _OPTIONS_OF_JAVA}
    ran = _output_of([java, "-version"], quiet)
    said = ran if isinstance(ran, str) else f"{ran.stdout}{ran.stderr}"
    version = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    if version is None:
        return Finding("Java", fault, f"{java} does not tell its version: {_one_line(said)[:200]}", _JAVA_ADVICE)
    found = f"{version[1]} at {java}, by {'JAVA_HOME' if home else 'PATH'}"
    if int(version[2]) < _OLDEST_JAVA:
        return Finding("Java", fault, found, _JAVA_ADVICE if is_needed else "")
    return Finding("Java", OK, found)


def _output_of(command: list[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str] | str:
    """A run of a program and its output, or the reason why it could not run."""
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
        found = f"distlog.spark cannot be imported with {pyspark}: {type(error).__name__}: {error}"
        return Finding("PySpark", ERROR, found, f"pip install {extra('spark')}")
    del data_source  # it could be imported
    if (home := os.environ.get("SPARK_HOME")) is not None:
        jars = sorted(Path(home, "jars").glob("spark-core_*.jar"))
        if not jars:
            return Finding("PySpark", ERROR, f"SPARK_HOME={home} has no Spark", "unset SPARK_HOME, or correct it")
        other = jars[0].stem.rpartition("-")[2]
        if other.split(".")[:2] != version.split(".")[:2]:
            found = f"{version} would start Spark {other} of SPARK_HOME={home}"
            return Finding("PySpark", ERROR, found, f"unset SPARK_HOME, or pip install pyspark=={other}")
    return Finding("PySpark", OK, f"{version} at {pyspark}")


#: The program of the process in which Spark looks for formats. Two arguments: the Python and the distlog of this
#: process, which has imported the format itself.
_LOOK = """
import sys

# the current folder, which -c adds: files there are not run
sys.path[:] = [each for each in sys.path if each]

import json
from importlib.util import find_spec
from pkgutil import iter_modules

found, failed = [each.name for each in iter_modules() if each.name.startswith("pyspark_")], {}
distlog, module = find_spec("distlog"), find_spec("pyspark_distlog")
is_known = distlog is not None and [sys.prefix, distlog.origin] == sys.argv[1:]
names = [name for name in found if name != "pyspark_distlog"]
for name in names + ([] if is_known or distlog is None else ["distlog.spark.data_source"]):
    try:
        __import__(name)
    except Exception as error:
        failed[name] = f"{type(error).__name__}: {error}"
print(json.dumps([found, failed, distlog and distlog.origin, module and module.origin]))
"""


def _spark_format() -> Finding:
    """A plain Spark session finds the format in the Python that it runs, by the names of modules there."""
    check, variables = 'format("distlog")', ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
    chosen = next((name for name in variables if os.environ.get(name)), "PATH")
    python = os.environ.get(chosen, "") if chosen != "PATH" else "python3"
    who = f"{shutil.which(python) or python} (by {chosen})"
    use = f"set PYSPARK_PYTHON={sys.executable}, or let distlog.spark.session make the session"
    here = find_spec("distlog")
    ran = _output_of([python, "-c", _LOOK, sys.prefix, str(here and here.origin)], os.environ)
    try:
        # modules may print when they are imported, and Python warns on standard error
        found, failed, library, module = json.loads("" if isinstance(ran, str) else ran.stdout.splitlines()[-1])
    except (ValueError, LookupError):
        said = ran if isinstance(ran, str) else _one_line(ran.stderr or ran.stdout)
        return Finding(check, WARNING, f"{who}, which Spark would run, does not work: {said[-200:]}", use)
    if library is None:
        return Finding(check, WARNING, f"{who}, which Spark would run, has no distlog", use)
    if failed:
        name, reason = next(iter(failed.items()))
        advice = use if name.startswith("distlog") else f"mend or remove {name}: it hides all formats of modules"
        return Finding(check, WARNING, f"{who} cannot import {name}: {reason}", advice)
    if "pyspark_distlog" not in found:
        seen = f"is installed so that Spark cannot see it: {module}" if module else "is not beside distlog"
        advice = "distlog.spark.register(spark), or install distlog by pip, or a path in PYTHONPATH"
        return Finding(check, WARNING, f"the module pyspark_distlog {seen}", advice)
    return Finding(check, OK, f"a plain session finds it in {module} by {who}")


#: A local disk that is as full as this, by bytes or inodes, is worth a line.
_FREE_SHARE = 0.05


def _findings_at(url: str, options: dict[str, Any]) -> Iterator[Finding]:
    try:
        storage = Folder(url, options)
        if storage.is_local:
            yield from _space(storage.local_path(""))
        report = check_store(storage, now_ms, time.monotonic, is_measured=False)
    except (DistlogError, OSError, ModuleNotFoundError) as error:
        yield Finding("store", ERROR, str(error))
        return
    for each in report.checks:
        if each.ok is not None:
            yield Finding(f"store: {each.name}", OK if each.ok else ERROR, each.about)
    yield from _topics(url, options)


def _topics(url: str, options: dict[str, Any]) -> Iterator[Finding]:
    """The topics right below the folder: those that cannot be opened, and copies with the ids of others."""
    errors: dict[str, DistlogError] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TopicIdWarning)
            found = topics(url, options, errors)
    except DistlogError as error:
        yield Finding("topics", ERROR, str(error))
        return
    yield Finding("topics", OK, f"{counted(len(found), 'topic')} can be opened")
    for name, fault in errors.items():
        yield Finding(f"topics: {name}", ERROR, str(fault), f"distlog verify {url.rstrip('/')}/{name}")
    for name, text in copies_in(found).items():
        yield Finding(f"topics: {name}", WARNING, text, f"distlog alter {url.rstrip('/')}/{name} --new-id")


def _space(folder: str) -> Iterator[Finding]:
    """Free space and free inodes of the disk that has the folder, or will have it."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    disk = os.statvfs(path)
    # some file systems, as btrfs, count no inodes
    for check, free, total, shown in (
        ("space", disk.f_bavail, disk.f_blocks, size_text(disk.f_bavail * disk.f_frsize)),
        ("inodes", disk.f_favail, disk.f_files, f"{disk.f_favail:,}"),
    ):
        if total:
            status = ERROR if not free else WARNING if free < _FREE_SHARE * total else OK
            advice = "distlog vacuum, or make room" if status != OK else ""
            yield Finding(check, status, f"{shown} free of {path}, {free / total:.0%}", advice)

"""A writer that is never closed: its records are committed at exit, or reported as lost."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import forked_programs
import pytest
from addresses import Address

import distlog

pytestmark = pytest.mark.long

PROLOGUE = """
import multiprocessing, os, sys, threading, time, warnings
import distlog
topic = distlog.open({url!r}, storage_options={options!r})
NEVER_MS = 10**7

def fail(file):
    raise OSError(28, os.strerror(28))

def values(*partitions):
    return [row.value for partition in partitions for row in topic.refresh().records(partition)]
"""


def run(address: Address, program: str) -> subprocess.CompletedProcess[str]:
    imports = ["aiobotocore.session", "s3fs"] if address.options else []
    return forked_programs.run(PROLOGUE.format(url=address.url, options=address.options) + program, imports=imports)


def stored(address: Address) -> list[list[bytes | None]]:
    topic = distlog.open(address.url, storage_options=address.options)
    return [[row.value for row in topic.records(partition)] for partition in range(topic.partitions)]


@pytest.fixture
def address(tmp_path: Path) -> Address:
    new_address = Address(str(tmp_path / "topic"), {})
    distlog.create(new_address.url, 2)
    return new_address


WARNED = "warnings.simplefilter('always', ResourceWarning)\n"
HELD = "writer = topic.writer(linger_ms=NEVER_MS)\nfor n in range(3): writer.append(b'%d' % n, partition=1)\n"


@pytest.mark.parametrize(
    "end",
    [
        "",
        "sys.exit(0)",
        "del writer; import gc; gc.collect()",
        "threading.Thread(target=lambda: (threading.main_thread().join(), writer.append(b'3', partition=1))).start()",
    ],
)
def test_pending_records_are_committed_at_exit_with_a_warning(end: str, address: Address) -> None:
    process = run(address, WARNED + HELD + end)
    assert process.returncode == 0, process.stderr
    assert stored(address)[1] == [b"0", b"1", b"2", b"3"][: 4 if "Thread" in end else 3]
    assert process.stderr.count("ResourceWarning: Writer") == 1
    assert "was not closed" in process.stderr
    assert "close it, or use a with block" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_fresh_python_commits_at_exit(address: Address) -> None:
    """The other programs in this file are forked from one, to be cheaper."""
    text = PROLOGUE.format(url=address.url, options=address.options) + HELD
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", text]
    process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (process.returncode, process.stderr.count("ResourceWarning: Writer")) == (0, 1), process.stderr
    assert stored(address)[1] == [b"0", b"1", b"2"]


def test_warnings_as_errors_do_not_stop_the_commit(address: Address) -> None:
    error = "warnings.simplefilter('error', ResourceWarning)\n"
    process = run(address, error + HELD + "second = topic.writer(); second.append(b'x', partition=0)")
    assert stored(address) == [[b"x"], [b"0", b"1", b"2"]]
    assert "ResourceWarning" in process.stderr


def test_an_uncaught_exception_loses_no_record(address: Address) -> None:
    process = run(address, HELD + "raise KeyError('something else broke')")
    assert process.returncode == 1
    assert stored(address)[1] == [b"0", b"1", b"2"]


def test_a_closed_or_flushed_writer_does_not_warn(address: Address) -> None:
    program = """
with topic.writer() as writer:
    writer.append(b'closed', partition=0)
other = topic.writer()
other.append(b'flushed', partition=1)
other.flush()
"""
    assert run(address, WARNED + program).stderr == ""
    assert stored(address) == [[b"closed"], [b"flushed"]]


def test_an_error_at_exit_names_uncommitted_records(address: Address) -> None:
    process = run(address, HELD + "writer.append(b'', partition=0)\nwriter.append(b'')\nos.fsync = fail")
    assert re.search("was not closed, and its last commit failed: .*No space left on device", process.stderr)
    assert "records_not_committed=5" in process.stderr
    assert stored(address) == [[], []]


def test_writers_of_a_dropped_topic_do_not_stop_others_at_exit(address: Address) -> None:
    dropped = """
other = distlog.create(topic.url + "-dropped", 1, config={"flush.messages": 1000})
writers = [other.writer(linger_ms=0) for _ in range(9)]
for each in writers:
    each.append(b'')
while other.refresh().end_offsets() != {0: 9}:
    time.sleep(0.01)
"""
    process = run(address, dropped + HELD + "distlog.open(other.url).drop()")
    assert stored(address)[1] == [b"0", b"1", b"2"]
    assert process.stderr.count("its last commit failed: the topic was dropped") == 9, process.stderr


def test_an_unseen_background_error_is_reported_at_exit(address: Address) -> None:
    program = """
taken, failing = threading.Event(), threading.Event()
def fail_in_background(file):
    taken.wait()
    failing.set()
    fail(file)
writer = topic.writer(linger_ms=0)
os.fsync = fail_in_background
writer.append(b'lost', partition=0)
taken.set()
failing.wait()
"""
    process = run(address, program)
    messages = re.findall(
        r"last commit failed: .*No space left on device.* records_not_committed=1\b", process.stderr
    )
    assert len(messages) == 1, process.stderr


def test_exit_waits_for_a_background_commit(address: Address) -> None:
    program = """
writer, started, ending = topic.writer(linger_ms=0), threading.Event(), threading.Event()
fsync, commit_at_exit = os.fsync, writer.commit_at_exit
writer.commit_at_exit = lambda: (ending.set(), commit_at_exit())[1]
def slow(file):
    started.set()
    ending.wait()
    fsync(file)
os.fsync = slow
writer.append(b'slow', partition=0)
started.wait()
"""
    assert run(address, program).stderr == ""
    assert stored(address)[0] == [b"slow"]


def test_it_commits_without_new_threads(address: Address) -> None:
    program = """
def refuse(*arguments):
    raise RuntimeError("can't create new thread at interpreter shutdown")
threading.Thread.start = refuse
"""
    process = run(address, HELD + program)
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert stored(address)[1] == [b"0", b"1", b"2"]


def test_a_killed_process_has_committed_only_flushed_records(address: Address) -> None:
    process = run(address, HELD + "writer.flush(); writer.append(b'lost', partition=1); os.kill(os.getpid(), 9)")
    assert process.returncode == -9
    assert stored(address)[1] == [b"0", b"1", b"2"]


FORK = """
sys.stdout.flush()
child = os.fork()
if child:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status == 0, status
"""


@pytest.mark.parametrize(
    "child", ["", "sys.exit(0)", "writer.flush()", "writer.close()", "with writer: pass", "os._exit(0)"]
)
def test_a_forked_child_never_commits_the_records_of_its_parent(child: str, address: Address) -> None:
    process = run(address, HELD + FORK + f"else:\n    {child or 'pass'}")
    assert process.returncode == 0, process.stderr
    assert "Traceback" not in process.stderr
    assert stored(address)[1] == [b"0", b"1", b"2"]


def test_a_forked_child_has_its_own_writer(address: Address) -> None:
    child = "    writer.append(b'child', partition=0)"
    process = run(address, HELD + FORK + "else:\n" + child)
    assert process.returncode == 0, process.stderr
    assert stored(address) == [[b"child"], [b"0", b"1", b"2"]]


def test_a_child_of_multiprocessing_commits_pending_records(address: Address) -> None:
    program = """
def work():
    mine = topic.writer(linger_ms=NEVER_MS)
    mine.append(b'child', partition=0)
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join(60)
assert process.exitcode == 0
"""
    process = run(address, HELD + program)
    assert process.returncode == 0, process.stderr
    assert stored(address) == [[b"child"], [b"0", b"1", b"2"]]


def test_a_fork_during_a_commit_does_not_hang_or_commit_twice(address: Address) -> None:
    program = """
writer, started, proceed = topic.writer(linger_ms=0), threading.Event(), threading.Event()
fsync = os.fsync
def slow(file):
    started.set()
    proceed.wait(60)
    fsync(file)
os.fsync = slow
writer.append(b'parent', partition=0)
started.wait(60)
child = os.fork()
os.fsync = fsync
if child:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    proceed.set()
    assert status == 0, status
else:
    writer.append(b'child', partition=1)
    writer.close()
"""
    process = run(address, program)
    assert process.returncode == 0, process.stderr
    assert stored(address) == [[b"parent"], [b"child"]]


@pytest.fixture
def s3_address(s3_url: Address) -> Address:
    distlog.create(s3_url.url, 2, storage_options=s3_url.options)
    return s3_url


@pytest.mark.s3
def test_it_commits_to_an_object_store_at_exit(s3_address: Address) -> None:
    process = run(s3_address, HELD + "writer.append(b'x', partition=0)")
    assert process.returncode == 0, process.stderr
    assert process.stderr == ""
    assert stored(s3_address) == [[b"x"], [b"0", b"1", b"2"]]


@pytest.mark.s3
def test_a_thread_that_outlives_the_main_one_commits_to_an_object_store_too(s3_address: Address) -> None:
    program = """
def work():
    threading.main_thread().join()
    writer.append(b'3', partition=1)
    writer.append(b'x', partition=0)
threading.Thread(target=work).start()
"""
    process = run(s3_address, HELD + program)
    assert process.returncode == 0, process.stderr
    assert stored(s3_address) == [[b"x"], [b"0", b"1", b"2", b"3"]]

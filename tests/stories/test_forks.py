"""A fork at any moment, as by Spark's daemons: the child never hangs and never harms its parent's work."""

from __future__ import annotations

from pathlib import Path

import forked_programs
import pytest
from addresses import Address

import distlog

pytestmark = pytest.mark.long

PROLOGUE = """
import faulthandler, gc, os, sys, threading
import distlog
from distlog.core.errors import DistlogError
from distlog.core.storage import calls
from distlog.core.storage.calls import in_parallel
from distlog.core.storage.calls import begin
from distlog.core.storage.storage import Storage
url, options = {url!r}, {options!r}
storage = Storage(url, options)

def forked(work):
    # the exit status of a child that does the work, and is killed when it hangs
    child = os.fork()
    if child == 0:
        faulthandler.dump_traceback_later(240, exit=True)
        try:
            work()
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

def refused(work):
    try:
        work()
    except DistlogError as error:
        assert "a fork" in str(error), error
    else:
        raise AssertionError("it was done")
"""


def run(address: Address, program: str) -> None:
    imports = ["aiobotocore.session", "s3fs"] if address.options else []
    text = PROLOGUE.format(url=address.url, options=address.options) + program
    forked_programs.run(text, check=True, imports=imports)


@pytest.fixture
def local(tmp_path: Path) -> Address:
    return Address(str(tmp_path / "log"), {})


@pytest.mark.parametrize("kind", ["local", pytest.param("s3_url", marks=pytest.mark.s3)])
def test_children_forked_while_background_writes_run_append_and_read(
    kind: str, request: pytest.FixtureRequest
) -> None:
    address: Address = request.getfixturevalue(kind)
    distlog.create(address.url, 2, storage_options=address.options)
    run(
        address,
        """
topic = distlog.open(url, storage_options=options)
# enough for background writes; an object store is slower
rows = [{"value": os.urandom(1000) * (20 if options else 100), "partition": n % 2} for n in range(40)]
done = threading.Event()

def write():
    while not done.is_set():
        topic.append(rows)

def work():
    assert topic.append([{"value": b"child", "partition": 0}]).record_count == 1
    mine = distlog.open(url, storage_options=options)
    assert len(mine.read(0, mine.append(rows).offsets[0][0], 10**6)) > 0

# the object store of the tests answers one request at a time
threads = [threading.Thread(target=write) for _ in range(1 if options else 2)]
for thread in threads:
    thread.start()
try:
    for _ in range(1 if options else 2):
        assert forked(work) == 0
finally:
    done.set()
for thread in threads:
    thread.join()
assert topic.refresh().verify().ok
""",
    )


def test_a_lock_that_a_thread_holds_at_a_fork_is_free_in_the_child(local: Address) -> None:
    distlog.create(local.url)
    run(
        local,
        """
topic = distlog.open(url)
topic.append([{"value": bytes(400_000)}, {"value": bytes(400_000)}])
assert topic.records(0, 1)
locks = list(calls._locks)
assert len(locks) >= 3, "the topic's, its indexes' and its identified logs'"

def hold(lock, held, proceed):
    with lock:
        held.set()
        proceed.wait(120)

def work():
    topic.append([{"value": b"child"}])
    assert [len(row.value) for row in topic.records(0, 1)] == [400_000, 5 ]

proceed = threading.Event()
for lock in locks:
    held = threading.Event()
    threading.Thread(target=hold, args=(lock, held, proceed), daemon=True).start()
    held.wait()
status = forked(work)
proceed.set()
assert status == 0
""",
    )


def test_a_fork_while_a_kernel_is_compiled_leaves_the_child_able_to_compile(local: Address) -> None:
    run(
        local,
        """
from numba.core.compiler_lock import global_compiler_lock
import numpy as np
from distlog.core.write.rows import group_by_partition
compiling = threading.Event()

def compile():
    with global_compiler_lock:
        compiling.set()
        threading.Event().wait(0.5)

thread = threading.Thread(target=compile)
thread.start()
compiling.wait()
assert forked(lambda: group_by_partition(np.zeros(3, np.int32), 1)) == 0
thread.join()
group_by_partition(np.zeros(3, np.int32), 1)
""",
    )


def test_a_child_does_not_wait_for_work_of_the_parents_threads(local: Address) -> None:
    run(
        local,
        """
started, proceed = threading.Event(), threading.Event()
task = begin(lambda: (started.set(), proceed.wait(120)))
started.wait()
waiting = [begin(lambda: proceed.wait(120)) for _ in range(9)]

def work():
    for each in (task, *waiting):
        refused(each.wait)
    assert in_parallel(lambda number: number + 1, range(5)) == [1, 2, 3, 4, 5]
    begin(started.clear).wait()
    assert not started.is_set()

status = forked(work)
proceed.set()
for each in (task, *waiting):
    each.wait()
assert status == 0
""",
    )


def test_a_forked_child_restarts_a_scan_and_leaves_its_parents_scan_alone(
    local: Address,
) -> None:
    distlog.create(local.url, config={"internal.segment.bytes": "300000"})
    run(
        local,
        """
import distlog.core.segments.segment_reader as segment_reader
segment_reader.GROUP_BYTES = 300_000
topic = distlog.open(url)
topic.append([{"value": os.urandom(1000)} for _ in range(30_000)])

def rows(batches):
    return sum(batch.num_rows for batch in batches)

def work():
    assert rows(topic.scan(max_workers=4)) == 30_000
    refused(lambda: rows(batches))
    assert rows(batches) == 0
    batches.close()

for given in range(2, 20, 4):
    batches = iter(topic.scan(max_workers=4))
    before = sum(next(batches).num_rows for _ in range(given))
    assert forked(work) == 0
    assert before + rows(batches) == 30_000
""",
    )


@pytest.mark.parametrize("kind", ["local", pytest.param("s3_url", marks=pytest.mark.s3)])
@pytest.mark.parametrize("end", ["writer.abort()", "refused(lambda: writer.write(b'x'))", "refused(writer.close)"])
def test_a_child_does_not_touch_the_file_that_its_parent_writes(
    end: str, kind: str, request: pytest.FixtureRequest
) -> None:
    run(
        request.getfixturevalue(kind),
        f"""
part = os.urandom(1 << 20)
os.makedirs(url, exist_ok=True) if storage.is_local else None
writer = storage.open_write("file")
for _ in range(20):
    writer.write(part)
writer.write_behind(part[5:])
assert forked(lambda: {end}) == 0
writer.write(b"end")
writer.close()
assert storage.read("file") == 20 * part + part[5:] + b"end"
""",
    )


@pytest.mark.parametrize("end", ["transaction.commit()", "transaction.append([])"])
def test_a_child_cannot_commit_the_transaction_of_its_parent(end: str, local: Address) -> None:
    distlog.create(local.url)
    run(
        local,
        f"""
topic = distlog.open(url)
with topic.transaction() as transaction:
    transaction.append([{{"value": b"parent"}}])
    assert forked(lambda: refused(lambda: {end})) == 0
    assert forked(transaction.abort) == 0
assert [row.value for row in topic.records()] == [b"parent"]
""",
    )

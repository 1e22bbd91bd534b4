"""The rules of the simulated stores, and the rules that judge the responses of gateways."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from distlog.core.kafka.transactions import ProducerId
from distlog.core.storage.calls import ErrorKind
from distlog.core.storage.object_client import ClientErrors, StorageOptions
from distlog.core.storage.storage import Storage
from simulation.actors import Stage
from simulation.gateways import NoAnswerError, Numbers, Operation, Register, has_ended
from simulation.object_store import Client, Faults, ObjectStore, connected, parts_of
from simulation.oracle import Oracle
from simulation.world import World


def done_in(protocol: str, work: Callable[[Storage, ObjectStore], Any], faults: Faults | None = None) -> Any:
    """Return what `work` returns in a process of a world whose store follows the protocol."""
    results = list[Any]()
    with World(1) as world:
        store = ObjectStore(world, faults=faults or Faults(), protocol=protocol)
        with connected(store), parts_of(100):
            storage = Storage(f"{protocol}://bucket/folder", {})
            world.process("client").start(lambda: results.append(work(storage, store)))
            world.run()
            world.check_over()
    assert world.errors == []
    return results[0]


PROTOCOLS = pytest.mark.parametrize("protocol", ["s3", "gs", "abfs"])


@PROTOCOLS
def test_one_of_two_puts_of_a_name_wins(protocol: str) -> None:
    def work(storage: Storage, store: ObjectStore) -> list[bytes]:
        return [storage.put_if_absent("f/name", data, timeout_s=60.0) for data in (b"first", b"second")]

    assert done_in(protocol, work) == [b"first", b"first"]


@PROTOCOLS
def test_what_is_missing_is_deleted_without_an_error(protocol: str) -> None:
    def work(storage: Storage, store: ObjectStore) -> int:
        storage.put("f/a", b"a")
        storage.delete(["f/a", "f/b"])
        return len(store.objects)

    assert done_in(protocol, work) == 0


@PROTOCOLS
def test_the_store_reports_its_time(protocol: str) -> None:
    def work(storage: Storage, store: ObjectStore) -> int:
        time.sleep(3600)
        return storage.now_ms("f") - int(time.time() * 1000)

    assert -2000 < done_in(protocol, work) <= 0


@PROTOCOLS
def test_a_large_object_is_sent_in_parts_and_visible_at_its_end(protocol: str) -> None:
    def work(storage: Storage, store: ObjectStore) -> tuple[list[str], bytes]:
        with storage.open_write("f/large") as writer:
            writer.write(bytes(range(256)) * 2)
            visible = list(store.objects)
        return visible, storage.read("f/large")

    assert done_in(protocol, work) == ([], bytes(range(256)) * 2)


def test_an_upload_that_nobody_finished_is_listed_and_aborted() -> None:
    def work(storage: Storage, store: ObjectStore) -> tuple[list[str], int]:
        writer = storage.open_write("f/large")
        writer.write(bytes(500))
        uploads = storage.uploads()
        storage.abort_uploads(uploads)
        return [upload.name for upload in uploads], len(store.uploads)

    assert done_in("s3", work) == (["f/large"], 0)


def test_an_upload_whose_last_response_was_lost_is_complete() -> None:
    def work(storage: Storage, store: ObjectStore) -> int:
        writer = storage.open_write("f/large")
        writer.write(bytes(500))
        store.faults.twice = 1.0
        writer.close()
        return storage.size("f/large")

    assert done_in("s3", work) == 500


def test_gcs_takes_one_write_of_an_object_a_second() -> None:
    def work(storage: Storage, store: ObjectStore) -> float:
        start_s = time.monotonic()
        for data in (b"1", b"2", b"3"):
            storage.put("f/hint", data)
        return time.monotonic() - start_s

    assert done_in("gs", work) >= 2.0
    assert done_in("s3", work) < 2.0


@pytest.mark.parametrize(
    ("protocol", "fault", "kind"),
    [
        ("s3", Faults(throttled=1.0), ErrorKind.UNCLEAR),
        ("gs", Faults(throttled=1.0), ErrorKind.UNCLEAR),
        ("abfs", Faults(throttled=1.0), ErrorKind.UNCLEAR),
        ("gs", Faults(failed=1.0), ErrorKind.UNCLEAR),
        ("abfs", Faults(failed=1.0), ErrorKind.UNCLEAR),
    ],
)
def test_the_library_reads_the_errors_of_each_client(protocol: str, fault: Faults, kind: ErrorKind) -> None:
    def work(storage: Storage, store: ObjectStore) -> ErrorKind:
        client = Client(store, store.world.processes[0])
        errors = ClientErrors(StorageOptions(), protocol)
        with pytest.raises(Exception) as raised:  # noqa: PT011
            client.info(f"{protocol}://bucket/folder/f")
        assert errors.is_answer(raised.value)
        return errors.kind(raised.value)

    assert done_in(protocol, work, fault) is kind


@pytest.mark.parametrize(
    ("fetched", "start_s", "wrong"),
    [
        (2, 30.0, False),
        (1, 30.0, True),
        (1, 15.0, False),
        (3, 30.0, False),
        (-1, 30.0, True),
        (-1, 0.0, False),
        (9, 30.0, True),
    ],
)
def test_a_fetch_returns_no_offset_that_was_replaced_before_it(fetched: int, start_s: float, wrong: bool) -> None:
    commits = [Operation(1, 1.0, 5.0), Operation(2, 10.0, 20.0), Operation(3, 12.0)]
    register = Register({-1: Operation(-1, -1.0, -1.0), **{commit.value: commit for commit in commits}})
    assert bool(list(register.wrong(Operation(fetched, start_s, start_s + 1)))) is wrong


def test_a_fetch_does_not_go_back_before_another_fetch() -> None:
    commits = [Operation(1, 1.0, 2.0), Operation(2, 3.0)]
    register = Register({commit.value: commit for commit in commits}, [Operation(2, 4.0, 5.0)])
    assert list(register.wrong(Operation(1, 4.5, 6.0))) == []
    assert list(register.wrong(Operation(1, 6.0, 7.0))) == ["a group got offset 1, after it had got 2"]


def test_records_of_a_transaction_whose_commit_nobody_asked_for_must_not_be_shown() -> None:
    with World(1) as world:
        oracle = Oracle(world, ObjectStore(world), "s3://bucket/clicks", 20.0)
        stage = Stage(oracle, oracle.url, end_s=1.0, pause_s=1.0, keys=8, partitions=1)
        process = world.process("client")

        def work() -> None:
            # there is no gateway
            with suppress(NoAnswerError):
                has_ended(stage, process, "client", "id", Numbers(ProducerId(1, 0)))

        process.start(work)
        world.run()
    assert world.errors == []
    assert oracle.batches
    assert all(batch.refused for batch in oracle.batches)

"""The processes of the kill campaign: writers, readers, and maintenance. Each runs until it is killed."""

from __future__ import annotations

import os
import random
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path
from time import monotonic

import distlog
from distlog.core.errors import CommitConflictError, TransactionTooOldError
from soak.appending import Appending
from soak.records import Ack, Acks, acknowledge, open_acks, read_records, record, writer_of
from soak.tally import demand

PARTITIONS = 2


def guarded(work: Callable[..., None], complaints: str, *arguments: object) -> None:
    """Run `work`, and leave a file in `complaints` if it raises; ends when the campaign's process does."""
    threading.Thread(target=_end_with_the_campaign, daemon=True).start()
    try:
        work(*arguments)
    except BaseException:
        Path(complaints, f"{work.__name__}-{os.getpid()}").write_text(traceback.format_exc(), encoding="utf-8")
        raise


def _end_with_the_campaign() -> None:
    campaign = parent_process()
    assert campaign is not None
    campaign.join()
    os._exit(1)


def write(url: str, acks: str, name: str, flush_messages: int) -> None:
    """Append batches of some records to one partition after the other, flush by the policy, then acknowledge."""
    chance = random.Random(name)
    logs = [Appending(url, partition) for partition in range(PARTITIONS)]
    file, number, unflushed = open_acks(Path(acks, f"{name}.acks")), 0, 0
    while True:
        partition, count = chance.randrange(PARTITIONS), chance.randint(1, 20)
        offset = logs[partition].append([record(name, number + delta) for delta in range(count)])
        unflushed += count
        if flush_messages and unflushed >= flush_messages:
            logs[partition].flush()
            unflushed = 0
        acknowledge(file, Ack(partition, offset, number, count))
        number += count


def read(url: str, acks: str, is_compacted: bool) -> None:
    """Read the topic again and again: records that were acknowledged or read before must exist."""
    chance, topic, reader = random.Random(os.getpid()), distlog.open(url), Reader(acks, is_compacted)
    delay_s = topic.config.file_delete_delay_ms / 1000
    file = open_acks(Path(acks, f"{os.getpid()}.read"))
    while True:
        start_s = monotonic()
        reader.note_acks()
        topic.refresh()
        try:
            for partition in range(PARTITIONS):
                reader.check(topic, partition, chance.random() < 0.2)
        except distlog.DistlogError:
            # a snapshot older than the delay may name files that vacuum deleted
            if monotonic() - start_s < delay_s / 2:
                raise
        os.write(file, b".")


class Reader:
    def __init__(self, acks: str, is_compacted: bool) -> None:
        self._acks, self._is_compacted = Acks(Path(acks)), is_compacted
        self._records: list[dict[int, tuple[str, int]]] = [{} for _ in range(PARTITIONS)]
        self._acknowledged: list[dict[int, tuple[str, int]]] = [{} for _ in range(PARTITIONS)]
        self._next = [0] * PARTITIONS

    def note_acks(self) -> None:
        for name, ack in self._acks.new():
            acks = self._acknowledged[ack.partition]
            for delta in range(ack.count):
                demand(ack.offset + delta not in acks, f"offset {ack.offset + delta} is assigned twice")
                acks[ack.offset + delta] = (name, ack.first + delta)

    def check(self, topic: distlog.Topic, partition: int, again: bool) -> None:
        start, end = topic.start_offsets()[partition], topic.end_offsets()[partition]
        seen_records, acks = self._records[partition], self._acknowledged[partition]
        demand(end >= max(acks, default=-1) + 1, f"the log ends at {end}, before an acknowledged record")
        demand(end >= self._next[partition], f"the log ends at {end}, and ended at {self._next[partition]}")
        begin = start if again else max(start, self._next[partition])
        rows = read_records(topic, partition, begin)
        records = {offset: writer_of(value) for offset, _, value in rows}
        if again and rows:
            _, key, _ = rows[len(rows) // 2]
            offsets = topic.scan(partition, keys=key, start=begin).to_table()["offset"].to_pylist()
            demand(
                offsets == [offset for offset, row_key, _ in rows if row_key == key],
                f"the records of key {key!r} from {begin} on are at {offsets}",
            )
        expected = range(begin, end)
        if self._is_compacted:
            demand(set(records) <= set(expected), "there are offsets out of bounds")
        else:
            demand(list(records) == list(expected), f"offsets are not dense from {begin} to {end}")
        for offset, writer_and_number in records.items():
            for known_records in (seen_records, acks):
                demand(
                    known_records.get(offset, writer_and_number) == writer_and_number,
                    f"offset {offset} is {writer_and_number}, and was {known_records.get(offset)}",
                )
        seen_records.update(records)
        self._next[partition] = end


def maintain(url: str, acks: str) -> None:
    file = open_acks(Path(acks, f"{os.getpid()}.maintenance"))
    chance, topic = random.Random(os.getpid()), distlog.open(url)
    logs = [Appending(url, partition).log for partition in range(PARTITIONS)]
    actions: list[Callable[[], object]] = [
        topic.retention,
        topic.compact,
        topic.vacuum,
        topic.rebuild_indexes,
        *(log.roll for log in logs),
    ]
    while True:
        # another process may have done it first
        with suppress(CommitConflictError, TransactionTooOldError):
            chance.choice(actions)()
        os.write(file, b".")

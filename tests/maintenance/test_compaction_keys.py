"""Whose record compaction deletes: keys are told apart by a hash under a secret that is drawn anew for each run."""

from __future__ import annotations

import random
from pathlib import Path

from compacting import SECRET, CompactedTopic, Known
from compacting import log as log

#: Two keys with one MurmurHash3_x64_128 of seed 0; for any key there are as many as one likes, in a moment.
ALIKE = (
    bytes.fromhex("6163636f756e74206f6620616c69636500000000000000000000000000000000"),
    bytes.fromhex("6163636f756e74206f66206d616c6c6f1ebda471dddd510b08a6ec925ccc995d"),
)


def test_keys_made_to_be_taken_for_another_are_not(log: CompactedTopic) -> None:
    log.append((ALIKE[0], b"alice"), (b"other", b"1"))
    log.append((ALIKE[1], b"mallory"))
    log.compact()
    assert log.values() == {ALIKE[0]: b"alice", b"other": b"1", ALIKE[1]: b"mallory"}


def test_every_round_has_a_secret_of_its_own(log: CompactedTopic) -> None:
    drawn = list[int]()

    class Source(random.Random):
        def randbytes(self, n: int) -> bytes:
            drawn.append(n)
            return bytes([len(drawn)]) * n

    for _ in range(2):
        log.append((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
        log.compact(random=Source())
    assert drawn == [16, 16]
    assert log.offsets() == [4, 5]


def test_the_secret_is_not_written_to_storage(log: CompactedTopic, tmp_path: Path) -> None:
    log.append((b"a", b"1"), (b"a", b"2"))
    log.compact(random=Known())
    assert log.offsets() == [1]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert not [form for form in (SECRET, SECRET[::-1], SECRET.hex().encode()) if form in written]

"""Put-if-absent on every storage: the first one wins, all others get its bytes."""

from __future__ import annotations

import pytest
from every_storage import MIB
from every_storage import storage as storage

from distlog.core.errors import StorageError
from distlog.core.storage.storage import FileInfo, Storage


def test_the_first_put_if_absent_wins_and_gets_its_own_bytes(storage: Storage) -> None:
    assert storage.put_if_absent("_commits/0.json", b"first") == b"first"
    assert storage.read("_commits/0.json") == b"first"


def test_a_later_put_if_absent_gets_the_winners_bytes_and_changes_nothing(storage: Storage) -> None:
    storage.put_if_absent("_commits/0.json", b"first")
    assert storage.put_if_absent("_commits/0.json", b"second") == b"first"
    assert storage.read("_commits/0.json") == b"first"


def test_the_same_bytes_again_are_a_success_again(storage: Storage) -> None:
    assert storage.put_if_absent("a", b"mine") == storage.put_if_absent("a", b"mine") == b"mine"


def test_put_if_absent_leaves_one_file_and_nothing_else(storage: Storage) -> None:
    storage.put_if_absent("_commits/0.json", b"first")
    storage.put_if_absent("_commits/0.json", b"second")
    assert storage.list("_commits") == [FileInfo("_commits/0.json", 5)]


@pytest.mark.parametrize("size", [0, 64 * MIB + 1])
def test_put_if_absent_refuses_what_is_empty_or_too_large_for_one_request(storage: Storage, size: int) -> None:
    with pytest.raises(StorageError, match="1 byte to 64 MiB"):
        storage.put_if_absent("a", bytes(size))


def test_the_probe_passes_and_leaves_nothing(storage: Storage) -> None:
    storage.probe_put_if_absent("_commits")
    assert storage.list("_commits") == []

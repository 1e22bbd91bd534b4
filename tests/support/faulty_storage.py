"""A storage that fails once, at a chosen operation."""

from __future__ import annotations

from typing import Any

from distlog.core.errors import CommitStateUnknownError, StorageError
from distlog.core.storage.storage import Storage

OPERATIONS = ("read", "put", "put_if_absent", "list_after", "modified_ms", "probe_put_if_absent")


class FaultyStorage:
    """A Storage whose operation number `fail_at` fails, afterwards or, with `fails_before`, without any effect.

    `operations` are the names of the calls. A put_if_absent fails as unknown, as it must.
    """

    def __init__(self, storage: Storage, fail_at: int = -1, *, fails_before: bool = False) -> None:
        self._storage, self.fail_at, self._fails_before = storage, fail_at, fails_before
        self.operations: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._storage, name)
        if name not in OPERATIONS:
            return real
        return lambda *args, **options: self._call(name, real, args, options)

    def _call(self, name: str, real: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        self.operations.append(name)
        if len(self.operations) - 1 != self.fail_at:
            return real(*args, **options)
        if not self._fails_before:
            real(*args, **options)
        raise (CommitStateUnknownError if name == "put_if_absent" else StorageError)("the reply was lost")

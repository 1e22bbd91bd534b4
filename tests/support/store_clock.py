"""A storage whose own time is a test's clock: what it says of now, and of when its commits were written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from distlog.core.storage.storage import FileInfo, PutTime, Storage

#: When files were put, by URL and name: storages of one URL share it, as clients of one store do.
WRITTEN: dict[tuple[str, str], int] = {}


class TimedStorage(Storage):
    """`storage` by the clock `store_clock`; what was not put by `put_if_absent` keeps its real time."""

    def __init__(self, storage: Storage, store_clock: Callable[[], int]) -> None:
        self.__dict__.update(storage.__dict__)
        self._store_clock = store_clock

    def now_ms(self, folder: str) -> int:
        return self._store_clock()

    def replied_ms(self) -> int:
        return self._store_clock()

    def put_if_absent(self, name: str, data: bytes, **options: Any) -> bytes:
        """As ever, and its time is noted."""
        options["put_time"] = put_time = options.get("put_time") or PutTime()
        standing = super().put_if_absent(name, data, **options)
        if standing == data:
            WRITTEN[self.url, name] = put_time.time_ms = self._store_clock()
        return standing

    def modified_ms(self, name: str) -> int:
        """As ever, or the time that was noted."""
        return WRITTEN.get((self.url, name), super().modified_ms(name))

    def list_after(self, folder: str, name: str = "") -> Iterator[FileInfo]:
        """As ever, with the times that were noted."""
        for file in super().list_after(folder, name):
            yield dataclasses.replace(file, modified_ms=WRITTEN.get((self.url, file.name), file.modified_ms))

    def list(self, folder: str = "") -> list[FileInfo]:
        """As ever, with the times that were noted."""
        files = super().list(folder)
        times = [WRITTEN.get((self.url, file.name), file.modified_ms) for file in files]
        return [dataclasses.replace(file, modified_ms=time) for file, time in zip(files, times, strict=True)]

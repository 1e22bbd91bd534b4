"""Finds out that somebody deleted a topic's folder beneath a process that goes on.

Its next commit would be the only one there: nobody could read it, nor make the topic anew. On a local disk each look
is next to nothing. On an object store it is a request, made once in LOOK_S. Meanwhile such a process may have
put commits: so it looks for one that was there at the look before.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from distlog.core import paths
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.errors import TopicNotFoundError
from distlog.core.storage.storage import Storage

#: How often one looks on an object store.
LOOK_S = 60.0


class StillThere:
    """Looks for the commits in `storage`; safe between threads. `monotonic` is in seconds."""

    def __init__(self, storage: Storage, monotonic: Callable[[], float]) -> None:
        self._storage, self._monotonic = storage, monotonic
        self._seen: tuple[float, int] | None = None

    def check(self, head: Snapshot) -> None:
        """Raise TopicNotFoundError if the folder of `head`, which was there, was deleted since."""
        if self._storage.is_local:
            is_there = os.path.exists(self._storage.local_path(paths.commit_file(head.version)))
        else:
            is_there = self._is_there_now_and_then(head.version)
        if not is_there:
            raise TopicNotFoundError(
                "the topic's folder was deleted: what was appended since is lost; open it again, or create the topic",
                url=self._storage.url,
            )

    def _is_there_now_and_then(self, head: int) -> bool:
        now_s = self._monotonic()
        looked_s, version = self._seen or (now_s, head)
        if now_s - looked_s >= LOOK_S:
            try:
                self._storage.size(paths.commit_file(version))
            except FileNotFoundError:
                return False
            looked_s, version = now_s, head
        self._seen = looked_s, version
        return True

"""A group's own little log: a file per version, put if absent, each with the whole state.

So commits of positions make no version of the topic, which every reader would have to read. Only the newest versions
are kept. To put the name of a version that was deleted would succeed, though nobody would ever read it. So whoever
has put a version lists the folder: a version is deleted only when there is one that is KEPT higher, and the highest
is never deleted. If the list has none that is about KEPT higher, then neither the version nor the one that it was
made from was deleted before, and the put counts.
"""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from collections.abc import Callable
from random import Random, SystemRandom

from distlog.core import paths
from distlog.core.errors import CommitConflictError, CorruptMetadataError, StorageError
from distlog.core.groups.group_state import GroupState
from distlog.core.storage.storage import Storage
from distlog.core.times import elapsed_s

#: How many versions behind the newest are kept.
KEPT = 32
#: How long a put is tried again, in seconds: by then the lease has lapsed anyway.
TIMEOUT_S = 60.0
_PAUSE_S = 0.05
#: The largest file that is read: positions of a hundred thousand partitions take 3 MB.
_MAX_BYTES = 64 << 20

#: Makes the next state from the newest one, or None if there is nothing to change.
GroupPlan = Callable[[GroupState], GroupState | None]

_log = logging.getLogger(__name__)


class GroupLog:
    """The versions of one group of the topic with `topic_id` in `storage`; times are in seconds."""

    def __init__(
        self,
        storage: Storage,
        topic_id: str,
        group: str,
        *,
        random: Random | None = None,
        sleep: Callable[[float], object] = time.sleep,
        clock: Callable[[], float] = elapsed_s,
    ) -> None:
        self._storage, self._topic_id, self.group = storage, topic_id, group
        self._folder = paths.group_folder(topic_id, group)
        self._random, self._sleep, self._clock = random or SystemRandom(), sleep, clock

    def load(self) -> GroupState:
        """The newest state: one LIST and one GET. Raises CorruptMetadataError, UnsupportedVersionError."""
        while versions := self._versions():
            state = self._read(max(versions))
            if state is not None:
                return state
        return GroupState.empty(self._topic_id, self.group)

    def newer(self, state: GroupState) -> GroupState:
        """The newest state, from `state` on: one GET of each version that follows, and one more of the next one.

        If there is nothing new, a second GET tells whether the next version was deleted, as in a busy group.
        """
        found = self._read(state.version + 1)
        if found is None and state.version >= 0 and self._read(state.version) is None:
            return self.load()
        while found is not None:
            state, found = found, self._read(found.version + 1)
        return state

    def commit(self, state: GroupState, plan: GroupPlan) -> GroupState:
        """Put what `plan` makes of `state`, if that is the newest one; returns the new state: one PUT, one LIST.

        `plan` is called again with a newer state after another member was first. Raises what it raises;
        CommitConflictError when others were first until the deadline; CommitStateUnknownError when the put may have
        happened: to try the same again is harmless.
        """
        end = self._clock() + TIMEOUT_S
        while True:
            made = plan(state)
            if made is None:
                return state
            made = dataclasses.replace(made, version=state.version + 1, id=str(uuid.uuid4()))
            data = made.encode()
            standing = self._storage.put_if_absent(self._file(made.version), data, timeout_s=TIMEOUT_S)
            if standing == data and self._counts(made.version):
                return made
            if self._clock() >= end:
                raise CommitConflictError("nothing was committed: others were first; try again", group=self.group)
            self._sleep(self._random.uniform(0, _PAUSE_S))
            state = self.load()

    def _counts(self, version: int) -> bool:
        """Whether a put of `version` that succeeded counts; deletes versions that are too old to be wanted."""
        versions = self._versions()
        newest = max(versions, default=version)
        old = [each for each in versions if each <= newest - KEPT]
        if len(old) >= KEPT:
            try:
                self._storage.delete([self._file(each) for each in old])
            except StorageError as error:
                _log.warning("old versions of the group %s stay for now: %s", self.group, error)
        return newest < version + KEPT - 1

    def _versions(self) -> list[int]:
        names = (file.name.rpartition("/")[2] for file in self._storage.list(self._folder))
        return [version for name in names if (version := paths.parse_commit_file(name)) is not None]

    def _read(self, version: int) -> GroupState | None:
        file = self._file(version)
        try:
            data = self._storage.read(file, 0, _MAX_BYTES)
        except FileNotFoundError:
            return None
        state = GroupState.decode(data, file)
        if (state.version, state.topic_id, state.group) != (version, self._topic_id, self.group):
            raise CorruptMetadataError(
                "the file is of another group or version: delete it to go back to the one before", file=file
            )
        return state

    def _file(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

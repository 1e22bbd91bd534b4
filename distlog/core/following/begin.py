"""Makes followers, of all partitions or as members of a group."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.consumer_offsets.kafka_positions import KafkaPositions
from distlog.core.errors import InvalidConfigError, TopicNotFoundError
from distlog.core.following.followed_log import FollowedLog
from distlog.core.following.follower import FIRST_PAUSE_S, LONGEST_PAUSE_S, PAUSE_GROWTH, Follower
from distlog.core.following.share import GroupShare, Share, WholeShare
from distlog.core.following.start import Start
from distlog.core.groups.group_log import GroupLog
from distlog.core.groups.group_state import LONGEST_LEASE_MS
from distlog.core.groups.membership import Membership
from distlog.core.reading.scan import check_columns, checked_workers
from distlog.core.reading.scan_plan import check_choice
from distlog.core.reading.slices.slices import OutOfRange
from distlog.core.times import elapsed_s
from distlog.core.topic_handle import TopicHandle
from distlog.core.transactions.isolation import IsolationLevel
from distlog.core.whole_number import whole_numbers

#: In seconds.
LEASE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """What `topic.follow` was asked for; see there. `clock` and `sleep` are in seconds."""

    partitions: int | Iterable[int] | None = None
    start: Start | None = None
    group: str | None = None
    timeout: float | None = None
    columns: str | Iterable[str] | None = None
    isolation: IsolationLevel = "read_uncommitted"
    out_of_range: OutOfRange = "fail"
    max_workers: int | None = None
    poll_interval: float | None = None
    lease: float = LEASE_S
    clock: Callable[[], float] = elapsed_s
    sleep: Callable[[float], object] | None = None

    def begin(self, handle: TopicHandle, snapshot: Snapshot) -> Follower:
        """The follower. It has looked at the topic, so it knows where it begins; in a group, it has signed on."""
        check_choice("isolation", self.isolation, IsolationLevel)
        check_choice("out_of_range", self.out_of_range, OutOfRange)
        _check_seconds("timeout", self.timeout, 0)
        _check_seconds("lease", self.lease, 0.001, LONGEST_LEASE_MS / 1000)
        workers, pauses = checked_workers(self.max_workers), self._pauses(handle.storage.is_local)
        log = FollowedLog(handle, snapshot, check_columns(self.columns), self.isolation, workers)
        log.look()
        share = self._share(log)
        share.renew()
        return Follower(log, share, self.out_of_range, self.timeout, pauses, clock=self.clock, sleep=self.sleep)

    def _share(self, log: FollowedLog) -> Share:
        chosen = None if self.partitions is None else set(whole_numbers("partition", self.partitions))
        named = self.start if isinstance(self.start, Mapping) else ()
        for number in (*(chosen or ()), *whole_numbers("partition", named)):
            if not 0 <= number < log.partitions:
                raise TopicNotFoundError(f"the topic has partitions 0 to {log.partitions - 1}", partition=number)
        if self.group is None:
            return WholeShare(log, None if chosen is None else sorted(chosen), self.start, self.out_of_range)
        storage, sleep = log.handle.storage, self.sleep or time.sleep
        name = f"{platform.node()[:200]}:{os.getpid()}"
        member = Membership(
            GroupLog(storage, log.snapshot.topic_id, self.group, sleep=sleep, clock=self.clock),
            lambda others: name,
            None if chosen is None else tuple(sorted(chosen)),
            self.lease,
            self.clock,
            log.handle.new_id,
            partial(KafkaPositions(log.handle).of_group, self.group),
        )
        return GroupShare(log, member, self.start, self.out_of_range)

    def _pauses(self, is_local: bool) -> tuple[float, float, float]:
        _check_seconds("poll_interval", self.poll_interval, 0.0001)
        longest_s = LONGEST_PAUSE_S[is_local] if self.poll_interval is None else self.poll_interval
        return min(FIRST_PAUSE_S[is_local], longest_s), longest_s, PAUSE_GROWTH[is_local]


def _check_seconds(name: str, value: float | None, low: float, high: float = math.inf) -> None:
    if value is not None and not (isinstance(value, int | float) and low <= value <= high):
        raise InvalidConfigError(f"{name} must be a number of seconds from {low:g} to {high:g}", value=repr(value))

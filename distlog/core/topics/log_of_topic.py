"""The commit log of a topic as programs of this process use it."""

from __future__ import annotations

import platform
import random

from distlog.core import VERSION
from distlog.core.commits.commit_log import CommitLog
from distlog.core.storage.storage import Storage
from distlog.core.times import now_ms


def topic_log(storage: Storage) -> CommitLog:
    """The commit log of the topic in `storage`, with this process's clock and name."""
    return CommitLog(storage, clock=now_ms, random=random.Random(), writer=f"distlog {VERSION} {platform.node()}")

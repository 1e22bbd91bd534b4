"""What commits after a version removed, and when: read from the commits, since no snapshot has it."""

from __future__ import annotations

from dataclasses import dataclass, field

from distlog.core.commits.commit_log import CommitLog
from distlog.core.commits.format.actions import Add, Remove, Restore, SetLogStartOffset
from distlog.core.commits.format.commit import Commit
from distlog.core.commits.format.segment_info import SegmentInfo

#: (partition, stem): together they name a segment's files.
Stem = tuple[int, str]


@dataclass(slots=True)
class RemovedSince:
    """The removals of the commits behind `version`, as far as they were read.

    `removed_at` is the version of the last commit that removed a segment. `added` are the segments as they were added
    last: a rebuild adds a segment again, with the sizes of its new indexes. `let_go` are those of them that left at
    the old end of their partition.
    """

    version: int
    removed_at: dict[Stem, int] = field(default_factory=dict)
    added: dict[Stem, SegmentInfo] = field(default_factory=dict)
    let_go: dict[Stem, SegmentInfo] = field(default_factory=dict)

    def read(self, log: CommitLog, head: int) -> None:
        """Read on, up to the commit of version `head`."""
        if head > self.version:
            for commit in log.commits(self.version + 1, head + 1):
                self._take(commit)
            self.version = head

    def _take(self, commit: Commit) -> None:
        restored = {action.partition for action in commit.actions if isinstance(action, Restore)}
        raised = {action.partition for action in commit.actions if isinstance(action, SetLogStartOffset)} - restored
        for action in commit.actions:
            if isinstance(action, Add):
                self.added[action.segment.partition, action.segment.stem] = action.segment
            elif isinstance(action, Remove):
                stem = (action.partition, action.stem)
                self.removed_at[stem] = commit.version
                if action.partition in raised and stem in self.added:
                    self.let_go[stem] = self.added[stem]

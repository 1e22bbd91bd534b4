"""`Run`, the one seam of maintenance: does work on many items, in threads here or in tasks elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.storage.parallel import in_order
from distlog.core.storage.storage import Storage

#: How many items of a remote topic are worked on at the same time. Each holds a few MiB, and 30 MiB more to upload.
PARALLEL = 8


class Sized(Protocol):
    """An item to work on. It says how large it is, so that all tasks get about the same amount of work."""

    @property
    def log_bytes(self) -> int:
        """Bytes of log to read."""


Item = TypeVar("Item", bound=Sized)
Result = TypeVar("Result")

#: Called with the records and the log bytes of each segment when it is done.
Tell = Callable[[int, int], None]


class Run(Protocol):
    """Does the same work on each item; gives the results in the items' order, perhaps one by one.

    Work and items must pickle. Work may run twice for one item, so a second run must do no harm.
    """

    def __call__(self, work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
        """The results; raises what the work raises."""


def one_by_one(work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
    """A `Run` that works on an item when the caller asks for its result."""
    return map(work, items)


def in_threads(work: Callable[[Item], Result], items: Sequence[Item], /) -> Iterable[Result]:
    """A `Run` that works on PARALLEL items at the same time. When it ends, even by an error, no work goes on."""
    return in_order((partial(work, item) for item in items), PARALLEL, joined=True)


def run_here(storage: Storage) -> Run:
    """The `Run` of this process: one item after another for local storage, threads for remote storage."""
    return one_by_one if storage.is_local else in_threads


def tell_nothing(records: int, size: int) -> None:
    """The `Tell` that does nothing."""


def each_segment(
    run: Run, work: Callable[[SegmentInfo], Result], snapshot: Snapshot, tell: Tell = tell_nothing
) -> Iterator[Result]:
    """The result of `work` for each live segment, by partition and base offset."""
    segments = [segment for state in snapshot.partitions for segment in state.segments]
    for segment, result in zip(segments, run(work, segments), strict=True):
        tell(segment.record_count, segment.log_bytes)
        yield result

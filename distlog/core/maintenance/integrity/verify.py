"""Verify: checks every checksum, batch, record, index entry and metadata invariant of a topic. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from distlog.core.commits.state.snapshot import Snapshot
from distlog.core.display.shown import Shown
from distlog.core.display.units import counted
from distlog.core.log.tails import with_tails, without_tails
from distlog.core.maintenance.integrity.anomalies import Anomaly
from distlog.core.maintenance.integrity.rebuild import live_segment
from distlog.core.maintenance.integrity.transaction_rebuild import with_missing_transactions
from distlog.core.maintenance.integrity.verify_commits import verify_commits, verify_table
from distlog.core.maintenance.integrity.verify_segment import SegmentVerdict, verify_segment
from distlog.core.maintenance.run import Run, Tell, each_segment, run_here, tell_nothing
from distlog.core.reading.files.segment_reader import SegmentReader
from distlog.core.topic_handle import TopicHandle

_TABLE = pa.schema(
    [
        ("partition", pa.int64()),
        ("base_offset", pa.int64()),
        ("next_offset", pa.int64()),
        ("stem", pa.string()),
        ("log_bytes", pa.int64()),
        ("batches", pa.int64()),
        ("records", pa.int64()),
        ("ok", pa.bool_()),
        ("anomalies", pa.list_(pa.string())),
    ]
)


@dataclass(frozen=True, slots=True, repr=False)
class VerifyReport(Shown):
    """What verify found in each segment, in the commits, in the checkpoints and in the order of the segments."""

    version: int
    segments: tuple[SegmentVerdict, ...]
    topic_anomalies: tuple[Anomaly, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.anomalies

    @property
    def anomalies(self) -> tuple[Anomaly, ...]:
        """All anomalies, the topic's own first."""
        return (*self.topic_anomalies, *(each for verdict in self.segments for each in verdict.anomalies))

    def __str__(self) -> str:
        size = sum(verdict.segment.log_bytes for verdict in self.segments)
        records = sum(verdict.records for verdict in self.segments)
        found = counted(len(self.anomalies), "anomaly", "anomalies") if self.anomalies else "nothing wrong"
        read = (len(self.segments), "segment"), (size, "byte"), (records, "record")
        return f"verified {', '.join(counted(*one) for one in read)}: {found}"

    def to_table(self) -> pa.Table:
        """A row per segment, by partition and base offset; its anomalies as text."""
        return pa.Table.from_pylist([_row(verdict) for verdict in self.segments], _TABLE)

    def to_dict(self) -> dict[str, Any]:
        """The totals, and every anomaly."""
        return {
            "version": self.version,
            "ok": self.ok,
            "segments": len(self.segments),
            "bytes": sum(verdict.segment.log_bytes for verdict in self.segments),
            "batches": sum(verdict.batches for verdict in self.segments),
            "records": sum(verdict.records for verdict in self.segments),
            "anomalies": [anomaly.to_dict() for anomaly in self.anomalies],
        }


def _row(verdict: SegmentVerdict) -> dict[str, Any]:
    names = ("partition", "base_offset", "next_offset", "stem", "log_bytes")
    return {
        **{name: getattr(verdict.segment, name) for name in names},
        "batches": verdict.batches,
        "records": verdict.records,
        "ok": verdict.ok,
        "anomalies": [str(anomaly) for anomaly in verdict.anomalies],
    }


def verify(
    handle: TopicHandle, snapshot: Snapshot, run: Run | None = None, *, tell: Tell = tell_nothing
) -> VerifyReport:
    """Check the whole topic at `snapshot`; appends and maintenance may go on meanwhile.

    Active segments that `snapshot` has are checked up to their ends in it; their offset and time indexes by checksums
    alone, since these lack the last entries. `tell` gets the records and log bytes of each segment when it is
    done. Raises StorageError when the storage does not answer, and TopicNotFoundError when the topic was dropped.
    """
    committed = without_tails(snapshot)
    topic = (*verify_commits(handle.storage, committed), *verify_table(snapshot))
    work = partial(verify_segment, handle.reader)
    verdicts = list(each_segment(run or run_here(handle.storage), work, snapshot, tell))
    verdicts = with_missing_transactions(handle.reader, snapshot, verdicts)
    if not all(verdict.ok for verdict in verdicts):
        # a segment that was removed and vacuumed since is not missing; indexes rebuilt since are checked again
        head = with_tails(handle, handle.log.refresh(committed))
        settled = (_settle(handle.reader, head, verdict) for verdict in verdicts)
        verdicts = [verdict for verdict in settled if verdict is not None]
    return VerifyReport(snapshot.version, tuple(verdicts), topic)


def _settle(reader: SegmentReader, head: Snapshot, verdict: SegmentVerdict) -> SegmentVerdict | None:
    """The verdict on the segment as it is at `head`; None if it is missing because it was removed since.

    A recovery may have cut an active segment, and a failed sync may have ended it with nothing.
    """
    if verdict.ok:
        return verdict
    live, is_active = live_segment(head, verdict.segment), verdict.segment.is_active
    if live is None and (is_active or "missing_segment" in {anomaly.word for anomaly in verdict.anomalies}):
        return None
    return verdict if live in (None, verdict.segment) else verify_segment(reader, live)

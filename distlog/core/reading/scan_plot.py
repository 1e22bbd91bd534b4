"""The picture of a scan, from the slices that it would read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from distlog.core.display.units import counted, size_text
from distlog.core.plots.facts import SegmentFacts
from distlog.core.plots.figures import Times, scan_figure
from distlog.core.reading.counted_slices import most_records
from distlog.core.reading.slices.slices import SegmentSlice


def plot(slices: Sequence[SegmentSlice], topic: str, times: Times | None) -> Any:
    """A matplotlib figure of the slices; `times` are the batches with the times of all records, if they count."""
    facts = slice_facts(slices)
    records, segments = counted(int(facts.records.sum()), "record"), counted(len(slices), "segment")
    title = f"Scan of {topic}: at most {records}, about {size_text(int(facts.bytes.sum()))} in {segments}"
    return scan_figure(title, facts, times)


def slice_facts(slices: Sequence[SegmentSlice]) -> SegmentFacts:
    """The facts of all slices; only the times that the scan asks for."""
    rows = []
    for piece in slices:
        segment = piece.segment
        first = segment.min_timestamp if segment.min_timestamp >= 0 else segment.first_timestamp
        last = segment.max_timestamp
        if last >= 0:
            first, last = max(first, piece.times.oldest), min(last, piece.times.newest)
        rows.append((segment.partition, most_records([piece]), piece.estimated_bytes, first, last))
    columns = np.array(rows, np.int64).reshape(-1, 5).T
    return SegmentFacts(np.unique(columns[0]), *columns)

"""Puts panels together: the picture of a topic, and that of a scan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from distlog.core.optional import optional
from distlog.core.plots import panels, style
from distlog.core.plots.facts import SegmentFacts
from distlog.core.plots.time_bins import TimeBins

#: The times of all records, if they are to be counted exactly.
Times = Iterable[pa.RecordBatch]


def topic_figure(title: str, facts: SegmentFacts, now_ms: int, retention_ms: int, times: Times | None = None) -> Any:
    """A topic: records over time, bytes by partition, and the ages of segments against retention."""
    figure, axes = _figure(title, [["time", "time"], ["bytes", "ages"]], 7.0)
    _over_time(axes["time"], facts.with_times(), times)
    panels.bytes_by_partition(axes["bytes"], facts)
    panels.segment_ages(axes["ages"], facts.with_times(), now_ms, retention_ms)
    return _shown(figure)


def scan_figure(title: str, facts: SegmentFacts, times: Times | None = None) -> Any:
    """A scan: records over time, and bytes by partition."""
    figure, axes = _figure(title, [["time"], ["bytes"]], 6.0)
    _over_time(axes["time"], facts.with_times(), times)
    panels.bytes_by_partition(axes["bytes"], facts)
    return _shown(figure)


def _over_time(axes: Any, facts: SegmentFacts, times: Times | None) -> None:
    if not len(facts.last_ms):
        panels.records_over_time(axes, None, np.empty(0), exact=True)
        return
    bins = TimeBins.over(int(facts.first_ms.min()), int(facts.last_ms.max()))
    counts = bins.spread(facts) if times is None else bins.counted(times)
    panels.records_over_time(axes, bins, counts, exact=times is not None)


def _figure(title: str, rooms: list[list[str]], height: float) -> tuple[Any, dict[str, Any]]:
    pyplot = optional("matplotlib.pyplot", "plot()", "'distlog[plot]'")
    figure = pyplot.figure(figsize=(10, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.1)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, color=style.INK)
    return figure, figure.subplot_mosaic(rooms)


def _shown(figure: Any) -> Any:
    """The figure; a notebook shows it as the result of a cell, so it must not show it once more as an open one."""
    pyplot = optional("matplotlib.pyplot", "plot()", "'distlog[plot]'")
    if "inline" in pyplot.get_backend().lower():
        pyplot.close(figure)
    return figure

"""The panels of which pictures are made: records over time, bytes by partition, ages of segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distlog.core.display.units import duration_text
from distlog.core.optional import optional
from distlog.core.plots import style
from distlog.core.plots.facts import SegmentFacts
from distlog.core.plots.time_bins import TimeBins

#: Up to so many partitions there is a gap between bars.
_GAPS = 60
_ALL_NAMED = 16
_AGE_BINS = 40
#: The limit of retention is drawn if it lies within so many times the largest age.
_NEAR = 3
_UNITS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))


def records_over_time(axes: Any, bins: TimeBins | None, counts: npt.NDArray[np.float64], *, exact: bool) -> None:
    """Records by time; `bins` None says that no record has a time."""
    style.panel(axes, "Records over time", "" if exact else "those of a segment spread evenly between its times")
    if bins is None:
        style.empty(axes, "no records with a time")
        return
    dates = optional("matplotlib.dates", "plot()", "'distlog[plot]'")
    edges = bins.edges_ms.astype("datetime64[ms]")
    axes.stairs(counts, dates.date2num(edges), fill=True, color=style.BLUE)
    axes.xaxis_date("UTC")
    locator = dates.AutoDateLocator(tz="UTC", maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(style.number_text)
    axes.set_xlim(*dates.date2num(edges[[0, -1]]))
    axes.set_ylim(bottom=0)
    style.labels(axes, "time of the records, UTC", f"records per {bins.label.removeprefix('1 ')}")


def bytes_by_partition(axes: Any, facts: SegmentFacts) -> None:
    """A bar for each partition, and their mean as a line."""
    sizes = facts.by_partition(facts.bytes)
    mean = float(sizes.mean()) if len(sizes) else 0.0
    skew = f"the largest is {sizes.max() / mean:.2f} times the mean" if mean and len(sizes) > 1 else ""
    style.panel(axes, "Bytes by partition", skew)
    if not mean:
        style.empty(axes, "no bytes")
        return
    width = 0.8 if len(sizes) <= _GAPS else 1.0
    numbers = facts.partitions
    axes.bar(numbers, sizes, width, color=style.BLUE)
    if len(sizes) > 1:
        axes.axhline(mean, color=style.INK, linewidth=1, linestyle=(0, (4, 3)))
    room = 0.7 if len(sizes) > 1 else 2.0
    axes.set_xlim(numbers[0] - room, numbers[-1] + room)
    if len(sizes) <= _ALL_NAMED:
        axes.set_xticks(numbers)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(style.bytes_text)
    style.labels(axes, "partition", "bytes in the log")


def segment_ages(axes: Any, facts: SegmentFacts, now_ms: int, retention_ms: int) -> None:
    """Bytes by the age of their segment's newest record; what is older than `retention_ms`, if not -1, is red."""
    limit = duration_text(retention_ms / 1000) if retention_ms >= 0 else "-1: no limit"
    style.panel(axes, "Segment ages", f"retention.ms = {limit}")
    if not len(facts.last_ms):
        style.empty(axes, "no segments with a time")
        return
    ages = np.maximum(now_ms - facts.last_ms, 0)
    oldest = max(int(ages.max()), 1)
    is_near = 0 <= retention_ms <= _NEAR * oldest
    unit, unit_ms = next(((name, size) for name, size in _UNITS if oldest >= 2 * size), _UNITS[-1])
    end = 1.05 * max(oldest, retention_ms if is_near else 0)
    edges = np.linspace(0, end, _AGE_BINS + 1)
    expired = (ages > retention_ms) & (retention_ms >= 0)
    axes.hist(
        [ages[~expired] / unit_ms, ages[expired] / unit_ms],
        bins=edges / unit_ms,
        weights=[facts.bytes[~expired], facts.bytes[expired]],
        stacked=True,
        color=[style.BLUE, style.RED],
        label=["kept", "the next retention deletes it"],
    )
    if is_near:
        axes.axvline(retention_ms / unit_ms, color=style.RED, linewidth=1.2, linestyle=(0, (4, 3)))
    if expired.any():
        axes.set_ylim(top=1.18 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, fontsize=8.5, labelcolor=style.INK, loc="upper left", ncols=2)
    axes.set_xlim(0, end / unit_ms)
    axes.yaxis.set_major_formatter(style.bytes_text)
    style.labels(axes, f"age of the segment's newest record, {unit}", "bytes in segments")

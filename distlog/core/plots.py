"""The pictures of a topic and of a scan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import extra, optional
from distlog.core.display import counted, duration_text, size_text
from distlog.core.times import NO_TIMESTAMP

Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """Columns of the segments, with times in ms or -1; `partitions` are the partitions that are shown, ascending."""

    partitions: Longs
    partition: Longs
    records: Longs
    bytes: Longs
    first_ms: Longs
    last_ms: Longs

    def by_partition(self, amounts: Longs) -> Longs:
        sums = np.zeros(len(self.partitions), np.int64)
        np.add.at(sums, np.searchsorted(self.partitions, self.partition), amounts)
        return sums

    def with_times(self) -> SegmentColumns:
        has_time = self.last_ms != NO_TIMESTAMP
        columns = (self.partition, self.records, self.bytes, np.minimum(self.first_ms, self.last_ms), self.last_ms)
        return SegmentColumns(self.partitions, *(column[has_time] for column in columns))


INK, MUTED, GRID = "#24292f", "#6e7781", "#e3e6ea"
BLUE, RED = "#3274b5", "#cf4a3c"


def panel(axes: Any, title: str, note: str = "") -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_title(note, loc="right", fontsize=8.5, color=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def labels(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)


def empty(axes: Any, reason: str) -> None:
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def number_text(number: float, _position: object = None) -> str:
    """A number on an axis: `950`, `1.5 k`, `20 M`."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"


def bytes_text(size: float, _position: object = None) -> str:
    """A size on an axis: `0`, `1.5 MB`, `20 MB`."""
    return size_text(size).replace(".0 ", " ") if size else "0"


#: The largest number of bins, and their widths, as people count time.
MOST_BINS = 100
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_WIDTHS = (
    *((number, f"{number} ms") for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *((number * _SECOND, counted(number, "second")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _MINUTE, counted(number, "minute")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _HOUR, counted(number, "hour")) for number in (1, 2, 3, 6, 12)),
    *((number * _DAY, counted(number, "day")) for number in (1, 2, 7, 30, 90, 365, 3650, 36_500)),
)
#: Times that a calendar has, and so an axis: up to the year 9999.
_LATEST_MS = 253_402_300_799_999


@dataclass(frozen=True, slots=True)
class TimeBins:
    start_ms: int
    width_ms: int
    count: int
    label: str

    @classmethod
    def over(cls, first_ms: int, last_ms: int) -> TimeBins:
        room = _MINUTE // 2 if first_ms == last_ms else 0
        first, last = (
            min(max(time_ms, 0), _LATEST_MS - _WIDTHS[-1][0]) for time_ms in (first_ms - room, last_ms + room)
        )
        width, label = next(bin for bin in _WIDTHS if last // bin[0] - first // bin[0] < MOST_BINS)
        return cls(first - first % width, width, last // width - first // width + 1, label)

    @property
    def edges_ms(self) -> Longs:
        return self.start_ms + self.width_ms * np.arange(self.count + 1, dtype=np.int64)

    def spread(self, columns: SegmentColumns) -> npt.NDArray[np.float64]:
        width = (columns.last_ms - columns.first_ms + 1).astype(np.float64)
        below = [
            float((columns.records * np.clip((edge - columns.first_ms) / width, 0.0, 1.0)).sum())
            for edge in self.edges_ms.tolist()
        ]
        return np.diff(below)

    def counted(self, batches: Iterable[pa.RecordBatch]) -> npt.NDArray[np.float64]:
        counts = np.zeros(self.count, np.int64)
        for batch in batches:
            times = batch.column("timestamp").cast(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
            bins = (times - self.start_ms) // self.width_ms
            inside = bins[(times >= 0) & (bins >= 0) & (bins < self.count)]
            counts += np.bincount(inside, minlength=self.count)
        return counts.astype(np.float64)


#: Up to this many partitions there is a gap between bars.
_GAPS = 60
_ALL_NAMED = 16
_AGE_BINS = 40
#: The limit of retention is drawn up to this many times the largest age.
_NEAR = 3
_UNITS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1000))


def records_over_time(axes: Any, bins: TimeBins | None, counts: npt.NDArray[np.float64], *, exact: bool) -> None:
    panel(axes, "Records over time", "" if exact else "records of a segment spread evenly between its times")
    if bins is None:
        empty(axes, "no records with a time")
        return
    dates = optional("matplotlib.dates", "plot()", extra("plot"))
    edges = bins.edges_ms.astype("datetime64[ms]")
    axes.stairs(counts, dates.date2num(edges), fill=True, color=BLUE)
    axes.xaxis_date("UTC")
    locator = dates.AutoDateLocator(tz="UTC", maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(number_text)
    axes.set_xlim(*dates.date2num(edges[[0, -1]]))
    axes.set_ylim(bottom=0)
    labels(axes, "time of the records, UTC", f"records per {bins.label.removeprefix('1 ')}")


def bytes_by_partition(axes: Any, columns: SegmentColumns) -> None:
    sizes = columns.by_partition(columns.bytes)
    mean = float(sizes.mean()) if len(sizes) else 0.0
    skew = f"the largest is {sizes.max() / mean:.2f} times the mean" if mean and len(sizes) > 1 else ""
    panel(axes, "Bytes by partition", skew)
    if not mean:
        empty(axes, "no bytes")
        return
    width = 0.8 if len(sizes) <= _GAPS else 1.0
    numbers = columns.partitions
    axes.bar(numbers, sizes, width, color=BLUE)
    if len(sizes) > 1:
        axes.axhline(mean, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    room = 0.7 if len(sizes) > 1 else 2.0
    axes.set_xlim(numbers[0] - room, numbers[-1] + room)
    if len(sizes) <= _ALL_NAMED:
        axes.set_xticks(numbers)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(bytes_text)
    labels(axes, "partition", "bytes in the log")


def segment_ages(axes: Any, columns: SegmentColumns, now_ms: int, retention_ms: int) -> None:
    """Bytes by the age of their segment's newest record; bytes older than `retention_ms`, if not -1, are red."""
    limit = duration_text(retention_ms / 1000) if retention_ms >= 0 else "-1: no limit"
    panel(axes, "Segment ages", f"retention.ms = {limit}")
    if not len(columns.last_ms):
        empty(axes, "no segments with a time")
        return
    ages = np.maximum(now_ms - columns.last_ms, 0)
    oldest = max(int(ages.max()), 1)
    is_near = 0 <= retention_ms <= _NEAR * oldest
    unit, unit_ms = next(((name, size) for name, size in _UNITS if oldest >= 2 * size), _UNITS[-1])
    end = 1.05 * max(oldest, retention_ms if is_near else 0)
    edges = np.linspace(0, end, _AGE_BINS + 1)
    expired = (ages > retention_ms) & (retention_ms >= 0)
    axes.hist(
        [ages[~expired] / unit_ms, ages[expired] / unit_ms],
        bins=edges / unit_ms,
        weights=[columns.bytes[~expired], columns.bytes[expired]],
        stacked=True,
        color=[BLUE, RED],
        label=["kept", "the next retention deletes it"],
    )
    if is_near:
        axes.axvline(retention_ms / unit_ms, color=RED, linewidth=1.2, linestyle=(0, (4, 3)))
    if expired.any():
        axes.set_ylim(top=1.18 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left", ncols=2)
    axes.set_xlim(0, end / unit_ms)
    axes.yaxis.set_major_formatter(bytes_text)
    labels(axes, f"age of the segment's newest record, {unit}", "bytes in segments")


#: The times of all records, to count them exactly.
Times = Iterable[pa.RecordBatch]


def topic_figure(
    title: str, columns: SegmentColumns, now_ms: int, retention_ms: int, times: Times | None = None
) -> Any:
    figure, axes = _figure(title, [["time", "time"], ["bytes", "ages"]], 7.0)
    _over_time(axes["time"], columns.with_times(), times)
    bytes_by_partition(axes["bytes"], columns)
    segment_ages(axes["ages"], columns.with_times(), now_ms, retention_ms)
    return _shown(figure)


def scan_figure(title: str, columns: SegmentColumns, times: Times | None = None) -> Any:
    figure, axes = _figure(title, [["time"], ["bytes"]], 6.0)
    _over_time(axes["time"], columns.with_times(), times)
    bytes_by_partition(axes["bytes"], columns)
    return _shown(figure)


def _over_time(axes: Any, columns: SegmentColumns, times: Times | None) -> None:
    if not len(columns.last_ms):
        records_over_time(axes, None, np.empty(0), exact=True)
        return
    bins = TimeBins.over(int(columns.first_ms.min()), int(columns.last_ms.max()))
    counts = bins.spread(columns) if times is None else bins.counted(times)
    records_over_time(axes, bins, counts, exact=times is not None)


def _figure(title: str, rooms: list[list[str]], height: float) -> tuple[Any, dict[str, Any]]:
    pyplot = optional("matplotlib.pyplot", "plot()", extra("plot"))
    figure = pyplot.figure(figsize=(10, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.1)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, color=INK)
    return figure, figure.subplot_mosaic(rooms)


def _shown(figure: Any) -> Any:
    """The figure; a notebook shows the result of a cell, so an open figure would be shown twice."""
    pyplot = optional("matplotlib.pyplot", "plot()", extra("plot"))
    if "inline" in pyplot.get_backend().lower():
        pyplot.close(figure)
    return figure

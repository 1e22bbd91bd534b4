"""The display of values, tables, reports and progress on terminals, in notebooks and as text; and plots."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import Field, dataclass, fields
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from distlog.core import extra, optional
from distlog.core.arrays import Longs
from distlog.core.times import NO_TIMESTAMP, iso

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_MAX_CELL_CHARACTERS = 60
_MAX_HTML_ROWS, _MAX_TEXT_ROWS = 20, 10
#: Progress without `shown=True` appears only after this many seconds.
PATIENCE_S = 1.0
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {9: "\\t", 10: "\\n", 13: "\\r"}


def size_text(size: float) -> str:
    """Write a number of bytes, in powers of 1000: `12.3 MB`."""
    power = 0
    # from 999.95 on, one decimal would show 1000.0
    while size >= 999.95 and power < len(_UNITS) - 1:
        size, power = size / 1000, power + 1
    return f"{size:.1f} {_UNITS[power]}" if power else f"{size:.0f} B"


def duration_text(seconds: float) -> str:
    """Write a duration: `42 s`, `3 min 05 s`, `2 h 10 min`, `7 d`."""
    total = round(seconds)
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min {total % 60:02} s"
    if total < 86_400:
        return f"{total // 3600} h {total % 3600 // 60:02} min"
    hours = total % 86_400 // 3600
    return f"{total // 86_400} d {hours:02} h" if hours else f"{total // 86_400} d"


def counted(number: int, noun: str, nouns: str | None = None) -> str:
    """Write a number with its noun: `1 byte`, `2,000 bytes`; `nouns` is an irregular plural."""
    return f"{number:,} {noun if number == 1 else nouns or f'{noun}s'}"


def sums_of(rows: Sequence[dict[str, int]], *names: str) -> dict[str, int]:
    return {name: sum(row[name] for row in rows) for name in names}


def text(value: object) -> str:
    """Write a value as one line; a header is key=value. Control characters and bytes that are not UTF-8 are \\xNN."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace").translate(_ESCAPES)
    if isinstance(value, list):
        return " ".join(text(item) for item in value)
    if isinstance(value, dict):
        return f"{text(value['key'])}={text(value['value'])}"
    return "null" if value is None else str(value).translate(_ESCAPES)


def _cells(column: pa.ChunkedArray, name: str) -> list[str]:
    """Write the values of a column for people: times in ISO 8601, sizes with units, empty for null."""
    write: Callable[[Any], str] = short_text
    if pa.types.is_timestamp(column.type):
        column, write = column.cast(pa.timestamp("ms")).cast(pa.int64()), iso
    elif _is_number(column.type):
        write = size_text if name.endswith("bytes") else "{:,}".format
    return ["" if value is None else write(value) for value in column.to_pylist()]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def short_text(value: object) -> str:
    line = text(value)
    return line if len(line) <= _MAX_CELL_CHARACTERS else f"{line[: _MAX_CELL_CHARACTERS - 1]}…"


def html(table: pa.Table, columns: Sequence[str] | None = None, most: int = _MAX_HTML_ROWS) -> str:
    """Write `columns` of the table, default all, as HTML: at most `most` rows, the first and the last ones."""
    titles, rows, _ = _table_cells(table, columns, most)
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<table class="dataframe"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def lines(table: pa.Table, columns: Sequence[str] | None = None, most: int = _MAX_TEXT_ROWS) -> str:
    titles, rows, are_numbers = _table_cells(table, columns, most)
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if is_number else cell.ljust(width)
            for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
        ).rstrip()
        for row in (titles, *rows)
    )


def _table_cells(
    table: pa.Table, columns: Sequence[str] | None, most: int
) -> tuple[list[str], list[list[str]], list[bool]]:
    """Return the titles, the rows with a row of dots for omitted rows, and which columns are numbers."""
    table = table.select(list(columns)) if columns is not None else table
    titles = list(table.schema.names)
    is_cut, last_count = table.num_rows > most, most // 2
    rows = _rows(table.slice(0, (most - last_count) if is_cut else most))
    if is_cut:
        rows += [["…"] * len(titles), *_rows(table.slice(table.num_rows - last_count))]
    return titles, rows, [_is_number(field.type) for field in table.schema]


def _rows(table: pa.Table) -> list[list[str]]:
    columns = [_cells(table.column(number), name) for number, name in enumerate(table.schema.names)]
    return [list(row) for row in zip(*columns, strict=True)]


class Terminal:
    """Shows a line of progress on a terminal until `close`."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def draw(self, line: str, share: float | None) -> None:
        self._stream.write(f"\r{line}\x1b[K")
        self._stream.flush()

    def close(self, line: str) -> None:
        self.draw("", None)


class Notebook:
    """Shows a line of progress in the output of the cell that runs, with a bar if `share` (0 to 1) is known."""

    def __init__(self, display: Any) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, line: str, share: float | None) -> None:
        value = "" if share is None else f' value="{share:.3f}"'
        self._show(f"<progress{value}></progress> {escape(line)}", line)

    def close(self, line: str) -> None:
        self._show(escape(line), line)

    def _show(self, markup: str, line: str) -> None:
        content = {"text/html": f"<div>{markup}</div>", "text/plain": line}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


Screen = Terminal | Notebook


def screen_of(shown: bool | None, stream: TextIO | None = None) -> Screen | None:
    """Return this process's notebook, else `stream`'s terminal; for `shown` None, only if Python is interactive."""
    if shown is False:
        return None
    if (ipython := sys.modules.get("IPython")) and hasattr(ipython.get_ipython(), "kernel"):
        return Notebook(sys.modules["IPython.display"].display)
    if not shown and not hasattr(sys, "ps1"):
        return None
    stream = sys.stderr if stream is None else stream
    # Python has no standard error where that was closed, as daemons do
    return Terminal(stream) if stream is not None and stream.isatty() else None


class Progress:
    """Shows rows and bytes done, the rate, and the time left if a total is known; for a `with` block."""

    def __init__(
        self,
        label: str,
        *,
        total_bytes: int | None = None,
        total_rows: int | None = None,
        shown: bool | None = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = 0.2,
    ) -> None:
        self._label, self._total_bytes, self._total_rows = label, total_bytes, total_rows
        self._screen: Screen | None = screen_of(shown, stream)
        self._clock, self._interval = clock, interval_s
        self._started = clock()
        self._next_draw = self._started + (PATIENCE_S if shown is None else interval_s)
        self._is_drawn = False
        self.rows = 0
        self.bytes = 0

    def add(self, rows: int, size: int = 0) -> None:
        self.rows += rows
        self.bytes += size
        if self._screen and self._clock() >= self._next_draw:
            self._next_draw = self._clock() + self._interval
            self._is_drawn = True
            self._screen.draw(self.line(), self._share())

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with self:
            for batch in batches:
                yield batch
                self.add(batch.num_rows, batch.nbytes if self._screen else 0)

    def line(self) -> str:
        seconds, share = self._seconds(), self._share()
        parts = [self._label, f"{self.rows:,} rows"]
        if self.bytes:
            parts += [size_text(self.bytes), f"{size_text(self.bytes / seconds)}/s"]
        if share:
            parts += [f"{int(100 * share)}%", f"{duration_text(seconds / share - seconds)} left"]
        return "  ".join(parts)

    def _share(self) -> float | None:
        count, total = (self.rows, self._total_rows) if self._total_rows else (self.bytes, self._total_bytes)
        return min(count / total, 1.0) if total else None

    def _seconds(self) -> float:
        return max(self._clock() - self._started, 1e-9)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._screen and self._is_drawn:
            size = f"  {size_text(self.bytes)}" if self.bytes else ""
            self._screen.close(f"{self._label}  {self.rows:,} rows{size}  {duration_text(self._seconds())}")


class Displayable:
    """A report whose `str` is a summary, and whose `to_table` has the rows; a notebook shows both."""

    __slots__ = ()

    def to_table(self) -> pa.Table:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {' | '.join(str(self).splitlines())}>"

    def _repr_html_(self) -> str:
        table = self.to_table()
        summary = "<br>".join(escape(line) for line in str(self).splitlines())
        return f"<p>{summary}</p>{html(table) if table.num_rows else ''}"


class DisplayableSettings:
    """A dataclass of settings under Kafka's names; its text has the changed settings, a notebook shows all."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def all(self) -> dict[str, object]:
        raise NotImplementedError

    def overrides(self) -> dict[str, str]:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.overrides().items())})"

    def _repr_html_(self) -> str:
        changed = self.overrides()
        docs = {field.name.replace("_", "."): field.metadata.get("doc") for field in fields(self)}
        rows = [
            {"setting": name, "value": str(value), "set": "yes" if name in changed else "", "meaning": docs.get(name)}
            for name, value in {**self.all(), **changed}.items()  # `changed` also has unknown settings
        ]
        return html(pa.Table.from_pylist(rows), most=len(rows))


if TYPE_CHECKING:
    import pandas as pd


class Listing:
    """Rows of metadata, such as commits or segments; immutable.

    It is an Arrow stream (`pyarrow.table(listing)`, Polars, DuckDB), and `listing["column"]` is one of its columns.
    Its text has the columns `shown`, and calls the rows `nouns`.
    """

    def __init__(self, table: pa.Table, nouns: str, shown: Sequence[str] | None = None) -> None:
        self._table, self._nouns = table, nouns
        self._shown = list(table.schema.names if shown is None else shown)

    @property
    def schema(self) -> pa.Schema:
        """The names and the types of the columns."""
        return self._table.schema

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.schema.names)

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column as Arrow.

        Args:
            name: The name of the column.

        Returns:
            The column; KeyError without one.
        """
        return self._table.column(name)

    def to_table(self) -> pa.Table:
        """Return all rows and columns as an Arrow table."""
        return self._table

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows and columns as a pandas DataFrame; pandas must be installed."""
        optional("pandas", "to_pandas()", "pandas")
        return self._table.to_pandas()

    def to_pylist(self) -> list[dict[str, Any]]:
        """Return all rows as dicts."""
        return self._table.to_pylist()  # type: ignore[no-any-return]

    def __getitem__(self, name: str) -> pa.ChunkedArray:
        return self._table[name]

    def __len__(self) -> int:
        return self.num_rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listing) and bool(self._table.equals(other._table))

    __hash__ = None  # type: ignore[assignment]

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"{self._title()}\n{lines(self._table, self._shown)}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._title())}</p>{html(self._table, self._shown)}"

    def _title(self) -> str:
        hidden = len(self._table.schema.names) - len(self._shown)
        more = f"; {hidden} more columns in to_pandas()" if hidden else ""
        return f"{self._nouns}: {self.num_rows:,}{more}"


INK, MUTED, GRID, BLUE, RED = "#24292f", "#6e7781", "#e3e6ea", "#3274b5", "#cf4a3c"
MOST_BINS = 100
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
#: The widths of bins in ms, as people count time, with their names.
_WIDTHS = (
    *((number, f"{number} ms") for number in (1, 2, 5, 10, 20, 50, 100, 200, 500)),
    *((number * _SECOND, counted(number, "second")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _MINUTE, counted(number, "minute")) for number in (1, 2, 5, 10, 15, 30)),
    *((number * _HOUR, counted(number, "hour")) for number in (1, 2, 3, 6, 12)),
    *((number * _DAY, counted(number, "day")) for number in (1, 2, 7, 30, 90, 365, 3650, 36_500)),
)
_LATEST_MS = 253_402_300_799_999  # the last time of an axis: the end of the year 9999, Python's last
#: The most bars that have gaps, and the most that have their partition's number on the axis.
_MAX_SPACED_BARS, _MAX_NUMBERED_BARS = 60, 16
_AGE_BINS = 40
#: The limit of retention is drawn if it is at most this many times the largest age.
_MAX_LIMIT_FACTOR = 3
_AGE_UNITS = (("days", _DAY), ("hours", _HOUR), ("minutes", _MINUTE), ("seconds", _SECOND))

Times = Iterable[pa.RecordBatch]  # batches with a column `timestamp`


@dataclass(frozen=True, slots=True, eq=False)
class SegmentColumns:
    """A row per segment, with times in ms or -1; `partitions` are the numbers of the shown partitions, ascending."""

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
        # a first time may be after the last time: it may be the base time of a batch, which a client chooses freely
        columns = (self.partition, self.records, self.bytes, np.minimum(self.first_ms, self.last_ms), self.last_ms)
        return SegmentColumns(self.partitions, *(column[has_time] for column in columns))


@dataclass(frozen=True, slots=True)
class TimeBins:
    """Bins of equal width; `label` is the width as people write it."""

    start_ms: int
    width_ms: int
    count: int
    label: str

    @classmethod
    def over(cls, first_ms: int, last_ms: int) -> TimeBins:
        margin = _MINUTE // 2 if first_ms == last_ms else 0  # shows a minute around a single time
        latest_ms = _LATEST_MS - _WIDTHS[-1][0]  # the last bin may end a width after its last time
        first, last = (min(max(time_ms, 0), latest_ms) for time_ms in (first_ms - margin, last_ms + margin))
        # the smallest width with at most MOST_BINS bins
        width, label = next(entry for entry in _WIDTHS if last // entry[0] - first // entry[0] < MOST_BINS)
        return cls(first - first % width, width, last // width - first // width + 1, label)

    @property
    def edges_ms(self) -> Longs:
        return self.start_ms + self.width_ms * np.arange(self.count + 1, dtype=np.int64)

    def spread(self, columns: SegmentColumns) -> npt.NDArray[np.float64]:
        """Estimate the records in each bin, by spreading records evenly over the time of their segment."""
        width = (columns.last_ms - columns.first_ms + 1).astype(np.float64)
        counts_up_to_edges = [
            float((columns.records * np.clip((edge - columns.first_ms) / width, 0.0, 1.0)).sum())
            for edge in self.edges_ms.tolist()
        ]
        return np.diff(counts_up_to_edges)

    def counted(self, batches: Times) -> npt.NDArray[np.float64]:
        """Count the records in each bin, by their times."""
        counts = np.zeros(self.count, np.int64)
        for batch in batches:
            times = batch.column("timestamp").cast(pa.int64()).drop_null().to_numpy(zero_copy_only=False)
            bins = (times - self.start_ms) // self.width_ms
            inside = bins[(times >= 0) & (bins >= 0) & (bins < self.count)]
            counts += np.bincount(inside, minlength=self.count)
        return counts.astype(np.float64)


def topic_figure(
    title: str, columns: SegmentColumns, now_ms: int, retention_ms: int, times: Times | None = None
) -> Any:
    """Draw records over time (estimated if `times` is None), bytes by partition, and ages against `retention_ms`."""
    figure, axes = _figure(title, [["time", "time"], ["bytes", "ages"]], 7.0, columns, times)
    _draw_segment_ages(axes["ages"], columns.with_times(), now_ms, retention_ms)
    return _closed_in_notebook(figure)


def scan_figure(title: str, columns: SegmentColumns, times: Times | None = None) -> Any:
    """Draw records over time (estimated if `times` is None), and bytes by partition."""
    figure, _ = _figure(title, [["time"], ["bytes"]], 6.0, columns, times)
    return _closed_in_notebook(figure)


def _figure(
    title: str, panels: list[list[str]], height: float, columns: SegmentColumns, times: Times | None
) -> tuple[Any, dict[str, Any]]:
    pyplot = optional("matplotlib.pyplot", "plot()", extra("plot"))
    figure = pyplot.figure(figsize=(10, height), layout="constrained", facecolor="white")
    figure.get_layout_engine().set(h_pad=0.12, w_pad=0.1)
    figure.suptitle(title, x=0.012, ha="left", fontsize=12, color=INK)
    axes = figure.subplot_mosaic(panels)
    _draw_records_over_time(axes["time"], columns.with_times(), times)
    _draw_bytes_by_partition(axes["bytes"], columns)
    return figure, axes


def _closed_in_notebook(figure: Any) -> Any:
    """Close the figure in a notebook, which would show it twice: as the result of the cell, and as an open figure."""
    pyplot = optional("matplotlib.pyplot", "plot()", extra("plot"))
    if "inline" in pyplot.get_backend().lower():
        pyplot.close(figure)
    return figure


def _draw_panel(axes: Any, title: str, note: str) -> None:
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set_title(note, loc="right", fontsize=8.5, color=MUTED)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(MUTED)
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)


def _draw_labels(axes: Any, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=9, color=MUTED)
    axes.set_ylabel(y, fontsize=9, color=MUTED)


def _draw_reason(axes: Any, reason: str) -> None:
    axes.text(0.5, 0.5, reason, transform=axes.transAxes, ha="center", va="center", fontsize=10, color=MUTED)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)


def _number_label(number: float, _position: object) -> str:
    """Write a number on an axis: `950`, `1.5 k`, `20 M`."""
    for factor, unit in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(number) >= factor:
            return f"{number / factor:.3g}{unit}"
    return f"{number:.3g}"


def _size_label(size: float, _position: object) -> str:
    """Write a size on an axis: `0`, `1.5 MB`, `20 MB`."""
    return size_text(size).replace(".0 ", " ") if size else "0"


def _draw_records_over_time(axes: Any, columns: SegmentColumns, times: Times | None) -> None:
    is_estimate = times is None and len(columns.last_ms) > 0
    note = "records of a segment spread evenly between its times" if is_estimate else ""
    _draw_panel(axes, "Records over time", note)
    if not len(columns.last_ms):
        _draw_reason(axes, "no records with a time")
        return
    bins = TimeBins.over(int(columns.first_ms.min()), int(columns.last_ms.max()))
    counts = bins.spread(columns) if times is None else bins.counted(times)
    dates = optional("matplotlib.dates", "plot()", extra("plot"))
    edges = bins.edges_ms.astype("datetime64[ms]")
    axes.stairs(counts, dates.date2num(edges), fill=True, color=BLUE)
    axes.xaxis_date("UTC")
    locator = dates.AutoDateLocator(tz="UTC", maxticks=9)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator, tz="UTC"))
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(_number_label)
    axes.set_xlim(*dates.date2num(edges[[0, -1]]))
    axes.set_ylim(bottom=0)
    _draw_labels(axes, "time of the records, UTC", f"records per {bins.label.removeprefix('1 ')}")


def _draw_bytes_by_partition(axes: Any, columns: SegmentColumns) -> None:
    sizes = columns.by_partition(columns.bytes)
    mean = float(sizes.mean()) if len(sizes) else 0.0
    skew = f"the largest is {sizes.max() / mean:.2f} times the mean" if mean and len(sizes) > 1 else ""
    _draw_panel(axes, "Bytes by partition", skew)
    if not mean:
        _draw_reason(axes, "no bytes")
        return
    width = 0.8 if len(sizes) <= _MAX_SPACED_BARS else 1.0
    numbers = columns.partitions
    axes.bar(numbers, sizes, width, color=BLUE)
    if len(sizes) > 1:
        axes.axhline(mean, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    margin = 0.7 if len(sizes) > 1 else 2.0  # a single bar would fill the panel
    axes.set_xlim(numbers[0] - margin, numbers[-1] + margin)
    if len(sizes) <= _MAX_NUMBERED_BARS:
        axes.set_xticks(numbers)
    else:
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.yaxis.set_major_formatter(_size_label)
    _draw_labels(axes, "partition", "bytes in the log")


def _draw_segment_ages(axes: Any, columns: SegmentColumns, now_ms: int, retention_ms: int) -> None:
    """Draw bytes by the age of their segment's newest record; red if older than `retention_ms`, unless that is -1."""
    limit = duration_text(retention_ms / 1000) if retention_ms >= 0 else "-1: no limit"
    _draw_panel(axes, "Segment ages", f"retention.ms = {limit}")
    if not len(columns.last_ms):
        _draw_reason(axes, "no segments with a time")
        return
    ages = np.maximum(now_ms - columns.last_ms, 0)
    oldest = max(int(ages.max()), 1)
    shows_limit = 0 <= retention_ms <= _MAX_LIMIT_FACTOR * oldest
    unit, unit_ms = next(((name, size) for name, size in _AGE_UNITS if oldest >= 2 * size), _AGE_UNITS[-1])
    end = 1.05 * max(oldest, retention_ms if shows_limit else 0)  # with a margin
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
    if shows_limit:
        axes.axvline(retention_ms / unit_ms, color=RED, linewidth=1.2, linestyle=(0, (4, 3)))
    if expired.any():
        axes.set_ylim(top=1.18 * axes.get_ylim()[1])  # room for the legend
        axes.legend(frameon=False, fontsize=8.5, labelcolor=INK, loc="upper left", ncols=2)
    axes.set_xlim(0, end / unit_ms)
    axes.yaxis.set_major_formatter(_size_label)
    _draw_labels(axes, f"age of the segment's newest record, {unit}", "bytes in segments")

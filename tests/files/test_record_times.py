"""Times of records: units, ISO 8601, and the formats of Python's strptime; no zone means UTC."""

from __future__ import annotations

from datetime import date, datetime, timezone

import pyarrow as pa
import pytest

from distlog.core.files.record_times import TimeReader
from distlog.core.times import to_ms

NOW = to_ms("2026-03-01T12:00:00Z")


def read(column: pa.Array, time_format: str | None = None, unit: str = "ms") -> list[int | None]:
    times = TimeReader(unit, time_format, NOW).of_column(column)
    assert not times.faults
    return times.column.to_pylist()  # type: ignore[no-any-return]


def faults(texts: list[str], time_format: str | None) -> dict[int, str]:
    return TimeReader("ms", time_format, NOW).of_column(pa.array(texts)).faults


@pytest.mark.parametrize(
    ("form", "text", "iso"),
    [
        ("%d/%m/%Y %H:%M:%S", "1/2/2024 3:04:05", "2024-02-01T03:04:05Z"),
        ("%d/%b/%Y:%H:%M:%S %z", "10/Oct/2000:13:55:36 -0700", "2000-10-10T20:55:36Z"),
        ("%d/%b/%Y:%H:%M:%S %z", "10/Oct/2000:13:55:36 Z", "2000-10-10T13:55:36Z"),
        ("%Y-%m-%d %H:%M:%S", "2024-02-01 03:04:05", "2024-02-01T03:04:05Z"),
        ("%Y%m%d", "20240201", "2024-02-01T00:00:00Z"),
        ("%Y-%m-%dT%H:%M:%S.%f", "2024-02-01T03:04:05.123999", "2024-02-01T03:04:05.123Z"),
        ("%d.%m.%y", "1.2.68", "2068-02-01T00:00:00Z"),
        ("%d.%m.%y", "1.2.70", "1970-02-01T00:00:00Z"),
        # the latest year that is not more than a day ahead of 1 March 2026
        ("%b %d %H:%M:%S", "Feb  3 01:02:03", "2026-02-03T01:02:03Z"),
        ("%b %d %H:%M:%S", "Mar  2 11:00:00", "2026-03-02T11:00:00Z"),
        ("%b %d %H:%M:%S", "Mar  3 01:02:03", "2025-03-03T01:02:03Z"),
        ("%b %d", "Feb 29", "2024-02-29T00:00:00Z"),
        ("%b %d %H:%M %z", "Dec 31 23:00 +0100", "2025-12-31T22:00:00Z"),
    ],
)
def test_a_format_is_that_of_strptime(form: str, text: str, iso: str) -> None:
    assert read(pa.array([text, "", None, text]), form) == [to_ms(iso), None, None, to_ms(iso)]
    assert TimeReader("ms", form, NOW).of_value(text) == to_ms(iso)


def test_texts_of_another_format_are_no_times() -> None:
    assert list(faults(["2024-02-01 10:00", "2024-02-01 10:00 +0000"], "%Y-%m-%d %H:%M %z")) == [0]
    assert list(faults(["Feb 30", "Feb 29", "x"], "%b %d")) == [0, 2]
    assert "before 1970" in faults(["1969"], "%Y")[0]
    assert "before 1970" in faults(["1.1.69"], "%d.%m.%y")[0]


def test_times_without_a_zone_are_utc_in_every_type() -> None:
    moment, ms = datetime(2024, 7, 1, 12), to_ms("2024-07-01T12:00:00Z")
    assert read(pa.array([moment, None])) == [ms, None]
    assert read(pa.array([moment.replace(tzinfo=timezone.utc)], pa.timestamp("us", "Europe/Berlin"))) == [ms]
    assert read(pa.array(["2024-07-01T12:00:00", "2024-07-01T14:00:00+02:00"])) == [ms, ms]
    assert read(pa.array([date(2024, 7, 1)])) == [to_ms("2024-07-01T00:00:00Z")]
    assert read(pa.array([ms // 1000, None]), unit="s") == [ms, None]
    assert read(pa.array([str(ms), str(ms)]).dictionary_encode()) == [ms, ms]


def test_parts_of_a_millisecond_are_cut() -> None:
    assert read(pa.array(["1970-01-01T00:00:00.001999Z", None])) == [1, None]
    assert read(pa.array([1_999_999], pa.timestamp("ns"))) == [1]

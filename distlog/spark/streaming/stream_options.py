"""The options of a stream: those of a read, and how much one micro-batch takes, as in Spark's Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from distlog.core.errors import InvalidConfigError
from distlog.core.reading.time_lookup import LATEST
from distlog.spark.options import Options
from distlog.spark.source.read_options import READ_NAMES, STREAM_NAMES, ReadOptions

#: Options of a batch read that a stream cannot have: it has no end, and follows the newest version.
BATCH_ONLY = {
    "endingOffsets": "a stream has no end: leave it out, or stop after what is there with Trigger.AvailableNow",
    "endingOffsetsByTimestamp": "a stream has no end: leave it out",
    "endingTimestamp": "a stream has no end: leave it out",
    "endTime": "a stream has no end: leave it out, or filter by the column timestamp",
    "pushFilters": "filters of a stream cannot be pushed down: leave it out",
    "startTime": "a stream starts at an offset: use startingTimestamp, or filter by the column timestamp",
    "tiered": "a bucket of Kafka's tiered storage is read as it is: leave it out",
    "tieredTopicId": "a bucket of Kafka's tiered storage is read as it is: leave it out",
    "timestampAsOf": "a stream follows the newest version: leave it out",
    "versionAsOf": "a stream follows the newest version: leave it out",
}

DEFAULT_DELAY = "15m"
_UNITS_MS = {"us": 0.001, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one micro-batch takes; None sets no limit. `max_delay_s` is how long it waits for `min_offsets`."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The parsed options of a stream."""

    read: ReadOptions
    limits: Limits

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> StreamOptions:
        """Parse the options. Raises InvalidConfigError, which never shows the value of a storage option."""
        options = Options(given, [*READ_NAMES, *STREAM_NAMES])
        for name, advice in BATCH_ONLY.items():
            if options.text(name) is not None:
                raise InvalidConfigError(f"option {name} is for batch reads: {advice}")
        limits = Limits(
            max_offsets=options.integer("maxOffsetsPerTrigger", 1),
            max_bytes=options.integer("maxBytesPerTrigger", 1),
            min_offsets=options.integer("minOffsetsPerTrigger", 1),
            max_delay_s=_duration_ms("maxTriggerDelay", options.text("maxTriggerDelay") or DEFAULT_DELAY) / 1000,
        )
        if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
            raise InvalidConfigError(
                "minOffsetsPerTrigger must not be above maxOffsetsPerTrigger",
                minOffsetsPerTrigger=limits.min_offsets,
                maxOffsetsPerTrigger=limits.max_offsets,
            )
        return cls(ReadOptions.parse(given, default_start=LATEST), limits)


def _duration_ms(name: str, text: str) -> float:
    """A duration as Spark writes it, `90s` or `15m`; a number alone is milliseconds."""
    found = re.fullmatch(r"(\d{1,12})\s*([a-z]*)", text.strip().lower(), re.ASCII)
    unit = _UNITS_MS.get(found[2] or "ms") if found else None
    if found is None or unit is None:
        raise InvalidConfigError(f"option {name} must be a duration like 500ms, 90s, 15m or 1h", value=text)
    return int(found[1]) * unit

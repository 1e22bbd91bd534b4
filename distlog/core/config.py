"""A topic's settings, under Kafka's names, with Kafka's defaults and ranges (`LogConfig`, Kafka 4.1).

Four settings are distlog's own: `batch.bytes`, which Kafka leaves to producers, `batch.ids.bytes`,
`commit.retention.ms` and `key.index.enable`. Two have other defaults: `file.delete.delay.ms` is one day, since a
Spark reader may hold a snapshot for hours. `flush.messages` is 1, since without replicas an acknowledged record must
be durable. `internal.segment.bytes` is for tests, as in Kafka: it replaces `segment.bytes`, and may be smaller.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlog.core.arrays import MAX_INT, MAX_LONG, MIN_LONG
from distlog.core.display import DisplayableSettings
from distlog.core.errors import InvalidConfigError, UnsupportedVersionError

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
#: The default and the smallest `commit.retention.ms`. For half this time, a process relies on vacuum to keep the
#: commits after its snapshot (`Snapshot.is_fresh_at`). So half the smallest value is far longer than a request.
COMMIT_RETENTION_MS, LEAST_COMMIT_RETENTION_MS = 7 * DAY_MS, 60_000
#: Vacuum keeps commits for at least this multiple of `file.delete.delay.ms`: a reader may hold a snapshot for the
#: delay, but relies on the commits after the snapshot only for half the retention.
COMMIT_RETENTION_DELAYS = 2
#: The smallest `internal.segment.bytes`, and `segment.bytes` of earlier versions (Kafka's RECORD_OVERHEAD_V0).
_MIN_SEGMENT = 14
_INTERNAL = "internal."

_Predicate = Callable[[Any], bool]


def _setting(default: Any, check: _Predicate, rule: str, doc: str, stored_check: _Predicate | None = None) -> Any:
    """Return a setting. `stored_check` is for stored values, of which earlier versions of distlog allowed more."""
    return field(
        default=default, metadata={"check": check, "stored_check": stored_check or check, "rule": rule, "doc": doc}
    )


def _between(default: float, low: float, high: float, doc: str) -> Any:
    return _setting(default, lambda value: low <= value <= high, f"between {low} and {high}", doc)


def _one_of(default: str, choices: tuple[str, ...], doc: str) -> Any:
    return _setting(default, lambda value: value in choices, f"one of {', '.join(choices)}", doc)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TopicConfig(DisplayableSettings):
    """The settings of one topic; a field's name is Kafka's with `_` for `.`.

    Raises InvalidConfigError for a value that no version of distlog allowed. `parse` checks the current ranges.
    """

    batch_bytes: int = _between(131_072, 1, MAX_INT, "uncompressed records of one batch, in bytes")
    batch_ids_bytes: int = _between(
        512 << 20, 0, MAX_LONG, "bytes of batch ids that are not committed in order; above it, a new id is refused"
    )
    cleanup_policy: str = _one_of(
        "delete",
        ("delete", "compact", "compact,delete", "delete,compact"),
        "delete: retention deletes old segments; compact: compaction keeps the newest record of each key",
    )
    commit_retention_ms: int = _setting(
        COMMIT_RETENTION_MS,
        lambda value: value == -1 or LEAST_COMMIT_RETENTION_MS <= value <= MAX_LONG,
        f"-1 or between {LEAST_COMMIT_RETENTION_MS} and {MAX_LONG}",
        "how far back history and time travel reach; vacuum deletes older commits; -1 keeps all",
    )
    compression_type: str = _one_of(
        "producer",
        ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        "codec of new batches, for every writer; producer: the writer's choice, uncompressed by default",
    )
    compression_gzip_level: int = _setting(
        -1, lambda value: value == -1 or 1 <= value <= 9, "-1 or between 1 and 9", "gzip level"
    )
    compression_lz4_level: int = _between(9, 1, 17, "lz4 level; 9 means the fast compressor, as in Kafka")
    compression_zstd_level: int = _between(3, -131_072, 22, "zstd level")
    delete_retention_ms: int = _between(DAY_MS, 0, MAX_LONG, "how long compaction keeps tombstones")
    file_delete_delay_ms: int = _between(DAY_MS, 0, MAX_LONG, "how long vacuum keeps removed files")
    flush_messages: int = _between(
        1, 1, MAX_LONG, "unsynced records of an active segment that cause a sync; 1: sync before each acknowledgement"
    )
    flush_ms: int = _between(
        MAX_LONG, 0, MAX_LONG, "time after which the unsynced records of an active segment are synced"
    )
    index_interval_bytes: int = _between(4096, 0, MAX_INT, "log bytes between two index entries")
    key_index_enable: bool = _setting(
        False, lambda value: True, "true or false", "gives new segments a key index, by which reads find keys"
    )
    max_compaction_lag_ms: int = _between(MAX_LONG, 1, MAX_LONG, "age at which a record must be compacted")
    max_message_bytes: int = _between(1_048_588, 0, MAX_INT, "largest batch, with its header, as stored")
    message_timestamp_type: str = _one_of(
        "CreateTime", ("CreateTime", "LogAppendTime"), "the time of a record: its own, or its append's"
    )
    message_timestamp_before_max_ms: int = _between(MAX_LONG, 0, MAX_LONG, "how old an appended record may be")
    message_timestamp_after_max_ms: int = _between(HOUR_MS, 0, MAX_LONG, "how far ahead a record's time may be")
    min_cleanable_dirty_ratio: float = _between(0.5, 0.0, 1.0, "share of uncompacted bytes that starts a compaction")
    min_compaction_lag_ms: int = _between(0, 0, MAX_LONG, "how long a record stays uncompacted")
    preallocate: bool = _setting(
        False, lambda value: True, "true or false", "gives an active segment's log its largest size at once"
    )
    retention_bytes: int = _setting(
        -1,
        lambda value: MIN_LONG <= value <= MAX_LONG,
        f"between {MIN_LONG} and {MAX_LONG}",
        "size kept per partition; -1 keeps all",
        stored_check=lambda value: True,
    )
    retention_ms: int = _between(7 * DAY_MS, -1, MAX_LONG, "age kept; -1 keeps all")
    segment_bytes: int = _setting(
        1 << 30,
        lambda value: 1 << 20 <= value <= MAX_INT,
        f"between {1 << 20} and {MAX_INT}",
        "largest log file of a segment",
        stored_check=lambda value: _MIN_SEGMENT <= value <= MAX_INT,
    )
    internal_segment_bytes: int = _setting(
        0,
        lambda value: value == 0 or _MIN_SEGMENT <= value <= MAX_INT,
        f"0 or between {_MIN_SEGMENT} and {MAX_INT}",
        "replaces segment.bytes, in tests; 0: does not",
    )
    segment_index_bytes: int = _between(10_485_760, 4, MAX_INT, "largest index file; a full one ends the segment")
    segment_jitter_ms: int = _between(0, 0, MAX_LONG, "largest random part by which segment.ms is shortened")
    segment_ms: int = _between(7 * DAY_MS, 1, MAX_LONG, "record time that a segment spans")
    # Settings that only a newer library knows, kept as they are: (name, value), sorted by name.
    unknown: tuple[tuple[str, str], ...] = ()
    # The names of the topic's own settings, which may have the default value; see `with_defaults`.
    names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    # The defaults that the caller opened the topic with, in place of Kafka's: (name, value).
    defaults: tuple[tuple[str, object], ...] = field(default=(), compare=False, repr=False)

    # The largest log file of a segment, in bytes (Kafka's `LogConfig.segmentSize`).
    segment_size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "segment_size", self.internal_segment_bytes or self.segment_bytes)
        for name, spec in _FIELDS.items():
            value = getattr(self, spec.name)
            if value is not spec.default:  # defaults are valid
                _check(name, value, spec.metadata["stored_check"])
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError("min.compaction.lag.ms must not be above max.compaction.lag.ms")

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> TopicConfig:
        """Make a config of settings by Kafka's names.

        Args:
            settings: Values, or their texts.

        Returns:
            The config.

        Raises:
            InvalidConfigError: A setting is unknown or out of range.
        """
        _check_mapping(settings)
        _check_new(settings)
        config = cls._of(settings)
        config._check_commit_retention()
        return config

    @classmethod
    def _of(cls, settings: Mapping[str, object]) -> TopicConfig:
        values: dict[str, Any] = {_FIELDS[name].name: _parse(name, value) for name, value in settings.items()}
        return cls(**values, names=tuple(settings))

    def _check_commit_retention(self) -> None:
        least_ms = COMMIT_RETENTION_DELAYS * self.file_delete_delay_ms
        if "commit.retention.ms" in self.names and 0 <= self.commit_retention_ms < least_ms:
            text = f"commit.retention.ms must be at least {COMMIT_RETENTION_DELAYS} times file.delete.delay.ms"
            raise InvalidConfigError(f"{text}, or -1", value=self.commit_retention_ms, least=least_ms)

    @classmethod
    def stored(cls, settings: Mapping[str, str]) -> TopicConfig:
        """The config of `settings` as a commit stores them; unknown settings are kept, but not used.

        Raises UnsupportedVersionError when this library knows the name, but not the value.
        """
        try:
            config = cls._of({name: value for name, value in settings.items() if name in _FIELDS})
        except InvalidConfigError as error:
            raise UnsupportedVersionError(f"a newer distlog set this topic's config: upgrade ({error})") from error
        unknown = sorted((name, value) for name, value in settings.items() if name not in _FIELDS)
        return dataclasses.replace(config, unknown=tuple(unknown))

    def changed(self, settings: Mapping[str, object | None]) -> TopicConfig:
        """Return this config with other settings.

        Args:
            settings: Values by Kafka's names; None resets a setting to its default.

        Returns:
            The new config.

        Raises:
            InvalidConfigError: A setting is unknown or out of range.
        """
        _check_mapping(settings)
        # a setting of a newer library can be reset, but not set: `_check_new` refuses its name
        for name in settings.keys() - dict(self.unknown).keys():
            _check_name(name)
        _check_new({name: value for name, value in settings.items() if value is not None})
        merged: dict[str, object] = {**self._known_overrides(), **settings}
        config = TopicConfig._of({name: value for name, value in merged.items() if value is not None})
        config._check_commit_retention()
        unknown = tuple(setting for setting in self.unknown if setting[0] not in settings)
        return dataclasses.replace(config, unknown=unknown).with_defaults(dict(self.defaults))

    def with_defaults(self, defaults: Mapping[str, object]) -> TopicConfig:
        """This config, with `defaults` (Kafka names) for settings that the topic does not have itself.

        The defaults are never stored. If the smallest compaction lag would be larger than the largest, only the
        topic's own lags apply. Raises InvalidConfigError.
        """
        overrides = self._known_overrides()
        values = {name: _parse(name, value) for name, value in defaults.items()}
        values |= {name: getattr(self, _FIELDS[name].name) for name in overrides}
        if {"min.compaction.lag.ms", "max.compaction.lag.ms"} <= values.keys() and (
            values["min.compaction.lag.ms"] > values["max.compaction.lag.ms"]  # type: ignore[operator]
        ):
            values = {
                name: value for name, value in values.items() if name in overrides or "compaction.lag" not in name
            }
        merged = TopicConfig._of(values)
        return dataclasses.replace(
            merged, unknown=self.unknown, names=tuple(overrides), defaults=tuple(defaults.items())
        )

    def overrides(self) -> dict[str, str]:
        """Return the settings that the topic sets itself, as Kafka names and strings, as they are stored."""
        return {**self._known_overrides(), **dict(self.unknown)}

    def _known_overrides(self) -> dict[str, str]:
        default_names = dict(self.defaults).keys()
        # without `names` (not made by `parse`), the topic's own settings are those that differ from all defaults
        return {
            name: _text_of(getattr(self, spec.name))
            for name, spec in _FIELDS.items()
            if name in self.names or (name not in default_names and getattr(self, spec.name) != spec.default)
        }

    def all(self) -> dict[str, object]:
        """Return every setting, as Kafka names and Python values."""
        return {name: getattr(self, spec.name) for name, spec in _FIELDS.items()}


class Setting(NamedTuple):
    name: str
    default: object
    rule: str
    meaning: str


def settings() -> list[Setting]:
    public = ((name, spec) for name, spec in _FIELDS.items() if not name.startswith(_INTERNAL))
    return sorted(Setting(name, spec.default, spec.metadata["rule"], spec.metadata["doc"]) for name, spec in public)


_FIELDS = {spec.name.replace("_", "."): spec for spec in dataclasses.fields(TopicConfig) if "check" in spec.metadata}


def _check_name(name: str) -> None:
    if name not in _FIELDS:
        close = difflib.get_close_matches(name, _FIELDS, n=1)
        hint = f"; did you mean {close[0]}?" if close else f": use one of {', '.join(_FIELDS)}"
        raise InvalidConfigError(f"unknown setting {name}{hint}")


def _check_mapping(settings: object) -> None:
    if not isinstance(settings, Mapping):
        raise InvalidConfigError("settings must be a dict: config={'retention.ms': 604800000}", got=repr(settings))


def _check_new(settings: Mapping[str, object]) -> None:
    for name, value in settings.items():
        _check_name(name)
        _check(name, _parse(name, value), _FIELDS[name].metadata["check"])


def _check(name: str, value: object, check: _Predicate) -> None:
    if not check(value):
        raise InvalidConfigError(f"{name} must be {_FIELDS[name].metadata['rule']}", value=value)


def _parse(name: str, value: object) -> object:
    kind: Callable[[str], object] = type(_FIELDS[name].default)
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (KeyError, ValueError):
        rule = f"{name} must be {_FIELDS[name].metadata['rule']}"
        raise InvalidConfigError(
            f"{rule}{without_unit(name, text, _FIELDS[name].metadata['check'])}", value=value
        ) from None


#: Units of time in ms, and of sizes in bytes, by the names that users write, or that end a setting's name.
_TIMES = {
    **dict.fromkeys(("ms", "millis", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hr", "hour", "hours"), HOUR_MS),
    **dict.fromkeys(("d", "day", "days"), DAY_MS),
    **dict.fromkeys(("w", "week", "weeks"), 7 * DAY_MS),
}
_SIZES = {
    "b": 1,
    "bytes": 1,
    # `k` is 1024, as in `ls`
    **{f"{letter}{end}": 1024**power for power, letter in enumerate("kmgt", 1) for end in ("", "ib")},
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)},
}


def without_unit(name: str, text: str, allows: Callable[[int], bool]) -> str:
    """Return the end of the error message for a value with a unit, as in 7d: the number to write, if it is clear."""
    units = _SIZES if name.endswith(".bytes") else _TIMES
    unit_of_setting = units.get(name.rpartition(".")[2])
    match = re.fullmatch(r"([0-9]{1,20})(?:\.([0-9]{1,20}))? *([A-Za-z]+)", text)
    unit = units.get(match[3].lower()) if match else None
    if match is None or unit_of_setting is None or unit is None:
        return ""
    decimals = match[2] or ""
    value, remainder = divmod(int(match[1] + decimals) * unit, unit_of_setting * 10 ** len(decimals))
    # a time in "m" may be of minutes or months
    is_sure = not remainder and (match[3] not in ("M", "m") or units is _SIZES) and allows(value)
    return f", without a unit: {text} is {value}" if is_sure else ", without a unit"


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

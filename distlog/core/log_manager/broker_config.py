"""The broker settings of Kafka that apply without a broker (`KafkaConfig`, `ServerLogConfigs`, Kafka 4.1)."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from distlog.core.arrays import MAX_INT, MAX_LONG
from distlog.core.commits.deduplication import EXPIRATION_MS
from distlog.core.config import HOUR_MS, TopicConfig, without_unit
from distlog.core.errors import InvalidConfigError

_SPACE = " \t\f"
#: A key ends at the first space, colon or equals sign that has no backslash before it.
_KEY = re.compile(r"((?:\\.|[^\\:= \t\f])*)[ \t\f]*[:=]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

# Some settings schedule the tasks of the LogManager. The other settings are defaults of topic settings, for topics
# that do not set these: `log.retention.hours` applies to topics without a `retention.ms`. A setting that is not in
# the file has no effect, because topics have the broker defaults of Kafka already.
#: By broker setting, the topic setting that has the same meaning and unit.
SAME_MEANING = {
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.flush.interval.messages": "flush.messages",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.preallocate": "preallocate",
    "log.retention.bytes": "retention.bytes",
    "log.segment.bytes": "segment.bytes",
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "message.max.bytes": "max.message.bytes",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
}
#: By topic setting: its broker settings, each with the ms of its unit. The first broker setting that is set applies.
TIMES = {
    "segment.ms": (("log.roll.ms", 1), ("log.roll.hours", HOUR_MS)),
    "segment.jitter.ms": (("log.roll.jitter.ms", 1), ("log.roll.jitter.hours", HOUR_MS)),
    "retention.ms": (("log.retention.ms", 1), ("log.retention.minutes", 60_000), ("log.retention.hours", HOUR_MS)),
    "flush.ms": (("log.flush.interval.ms", 1), ("log.flush.scheduler.interval.ms", 1)),  # as in Kafka
}
#: Kafka's settings that begin with `log.` and change nothing here. Settings with other prefixes are not checked.
_IGNORED = frozenset(
    {
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "log.cleaner.io.buffer.size",
        "log.cleaner.io.max.bytes.per.second",
        "log.cleaner.threads",
        "log.deletion.max.segments.per.run",
        "log.dir",
        "log.dir.failure.timeout.ms",
        "log.dirs",
        "log.local.retention.bytes",
        "log.local.retention.ms",
        "log.message.downconversion.enable",
        "log.message.format.version",
        "log.message.timestamp.difference.max.ms",
    }
)
_SETTING = "broker_setting"


class BrokerSetting(NamedTuple):
    """A setting. Messages show its first name. The config's field has the setting's value multiplied by `unit`."""

    names: tuple[str, ...]
    meaning: str
    least: int
    most: int
    unit: int

    @property
    def name(self) -> str:
        return self.names[0]


def broker_setting(
    names: str, default: Any, meaning: str = "", *, least: int = 0, most: int = MAX_LONG, unit: int = 1
) -> Any:
    """Return a field for a setting; the first of `names` that is set applies. If `default` is None, -1 means None."""
    setting = BrokerSetting(tuple(names.split()), meaning, least, most, unit)
    return field(default=default, metadata={_SETTING: setting})


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The schedule of the tasks, in ms, and the defaults of topics, by topic setting."""

    initial_task_delay_ms: int = broker_setting("log.initial.task.delay.ms", 30_000)
    retention_check_interval_ms: int = broker_setting("log.retention.check.interval.ms", 300_000, least=1)
    flush_scheduler_interval_ms: int = broker_setting("log.flush.scheduler.interval.ms", MAX_LONG, least=1)
    flush_offset_checkpoint_interval_ms: int = broker_setting(
        "log.flush.offset.checkpoint.interval.ms", 60_000, least=1
    )
    flush_start_offset_checkpoint_interval_ms: int = broker_setting(
        "log.flush.start.offset.checkpoint.interval.ms", 60_000, least=1
    )
    cleaner_backoff_ms: int = broker_setting("log.cleaner.backoff.ms", 15_000, least=1)
    cleaner_enable: bool = broker_setting("log.cleaner.enable", True)
    producer_id_expiration_ms: int = broker_setting("producer.id.expiration.ms", EXPIRATION_MS, least=1, most=MAX_INT)
    #: distlog's own: the interval between scans of the roots for new and deleted topics.
    scan_interval_ms: int = broker_setting("log.dirs.scan.interval.ms", 60_000, least=1)
    topic_defaults: Mapping[str, object] = field(default_factory=dict)

    @classmethod
    def parse(cls, settings: Mapping[str, object]) -> BrokerConfig:
        """Parse Kafka-named `settings`; unknown names are refused only if they begin with `log.`."""
        for name in settings:
            _check_known(name)
        return cls(**given_values(cls, settings), topic_defaults=_topic_defaults(settings))


def settings_of(kind: Any) -> dict[str, BrokerSetting]:
    return {
        setting_field.name: setting_field.metadata[_SETTING]
        for setting_field in dataclasses.fields(kind)
        if _SETTING in setting_field.metadata
    }


def given_values(kind: type[Any], settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the values in Kafka-named `settings` by the names of their fields in the dataclass `kind`."""
    values = {}
    for setting_field in dataclasses.fields(kind):
        setting = setting_field.metadata.get(_SETTING)
        name = next((name for name in setting.names if name in settings), None) if setting else None
        if setting and name:
            values[setting_field.name] = _value(setting, name, settings[name], setting_field.default)
    return values


def settings_with_texts(values: Any) -> Iterator[tuple[BrokerSetting, str, bool]]:
    """Yield each setting, its value as a text, and whether the value is the default."""
    for setting_field in dataclasses.fields(values):
        setting, value = setting_field.metadata.get(_SETTING), getattr(values, setting_field.name)
        if setting is not None:
            yield setting, _text(setting, value), value == setting_field.default


def parse_properties(text: str) -> dict[str, str]:
    """Parse a Java properties file (`java.util.Properties.load`); the last value of a name applies."""
    properties = {}
    for line in _logical_lines(text):
        match = _KEY.fullmatch(line)
        if match:
            properties[_unescaped(match[1])] = _unescaped(match[2])
    return properties


def _logical_lines(text: str) -> Iterator[str]:
    """Yield the lines without comments; a line with an odd number of backslashes at its end continues."""
    joined = ""
    for natural_line in re.split(r"\r\n|\r|\n", text):
        line = natural_line.lstrip(_SPACE)
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield joined
        joined = ""
    if joined:
        yield joined


def _unescaped(text: str) -> str:
    def character(match: re.Match[str]) -> str:
        escape = match[1]
        if len(escape) == 5:  # u and four hexadecimal digits
            return chr(int(escape[1:], 16))
        return _CONTROLS.get(escape, escape)

    return _ESCAPE.sub(character, text)


_OWN_NAMES = {setting.name for setting in settings_of(BrokerConfig).values()}
_SETTING_NAMES = frozenset({*_OWN_NAMES, *SAME_MEANING, *(name for times in TIMES.values() for name, _ in times)})


def _check_known(name: str) -> None:
    if not name.startswith("log.") or name in _SETTING_NAMES or name in _IGNORED:
        return
    close = difflib.get_close_matches(name, _SETTING_NAMES, n=1)
    hint = f"; did you mean {close[0]}?" if close else f": use one of {', '.join(sorted(_SETTING_NAMES))}"
    raise InvalidConfigError(f"unknown setting {name}{hint}")


def _topic_defaults(settings: Mapping[str, object]) -> dict[str, object]:
    """Convert broker settings to the topic settings of the same meaning. Errors have the broker's name."""
    # by topic setting: the name and value of the broker setting
    sources = {name: (broker, settings[broker]) for broker, name in SAME_MEANING.items() if broker in settings}
    for name, times in TIMES.items():
        broker, unit = next(((broker, unit) for broker, unit in times if broker in settings), ("", 0))
        if broker:
            sources[name] = broker, _in_ms(name, broker, settings[broker], unit)
    for name, (broker, value) in sources.items():
        try:
            TopicConfig.parse({name: value})
        except InvalidConfigError as error:  # noqa: PERF203 - a file has few settings
            raise InvalidConfigError(f"{broker}: {error.message}", **error.details) from None
    defaults = {name: value for name, (_, value) in sources.items()}
    TopicConfig.parse(defaults)  # checks the lags of compaction against each other
    return defaults


def _in_ms(name: str, broker: str, value: object, unit: int) -> int:
    """Convert a time to ms. As in Kafka, a negative retention is -1 (no limit), and a retention of 0 is refused."""
    number = setting_number(broker, value, -MAX_LONG)
    if name == "retention.ms" and number <= 0:
        if number == 0:
            raise InvalidConfigError(f"{broker} must be -1 (no limit) or at least 1", value=value)
        return -1
    return number * unit


def _text(setting: BrokerSetting, value: Any) -> str:
    if value is None:
        return "-1"
    if isinstance(value, str):
        return value
    return str(value).lower() if isinstance(value, bool) else str(value // setting.unit)


def _value(setting: BrokerSetting, name: str, value: object, default: Any) -> int | bool | str | None:
    text = str(value).strip()
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise InvalidConfigError(f"{name} must be true or false", value=value)
        return text.lower() == "true"
    if default is None and text == "-1":
        return None
    return setting.unit * setting_number(name, value, setting.least, setting.most)


def setting_number(name: str, value: object, least: int, most: int = MAX_LONG) -> int:
    try:
        number = int(str(value).strip())
    except ValueError:
        hint = without_unit(name, str(value).strip(), lambda number: least <= number <= most)
        raise InvalidConfigError(f"{name} must be a whole number{hint}", value=value) from None
    if not least <= number <= most:
        raise InvalidConfigError(f"{name} must be between {least} and {most}", value=value)
    return number

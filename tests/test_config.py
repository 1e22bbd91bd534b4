"""A topic's settings: Kafka's names, defaults, ranges and errors."""

from __future__ import annotations

import pickle

import pytest

from distlog.core.arrays import MAX_LONG
from distlog.core.config import TopicConfig, settings
from distlog.core.errors import InvalidConfigError, UnsupportedVersionError

KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": -1,
    "compression.lz4.level": 9,
    "compression.type": "producer",
    "compression.zstd.level": 3,
    "delete.retention.ms": 86_400_000,
    "flush.ms": MAX_LONG,
    "index.interval.bytes": 4096,
    "max.compaction.lag.ms": MAX_LONG,
    "max.message.bytes": 1_048_588,
    "message.timestamp.after.max.ms": 3_600_000,
    "message.timestamp.before.max.ms": MAX_LONG,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": 0.5,
    "min.compaction.lag.ms": 0,
    "preallocate": False,
    "retention.bytes": -1,
    "retention.ms": 604_800_000,
    "segment.bytes": 1_073_741_824,
    "segment.index.bytes": 10_485_760,
    "segment.jitter.ms": 0,
    "segment.ms": 604_800_000,
}


def test_defaults_are_kafkas() -> None:
    values = TopicConfig().all()
    assert {name: values[name] for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS


def test_acknowledged_records_are_synced_by_default() -> None:
    assert TopicConfig().flush_messages == 1


def test_removed_files_are_kept_a_day_by_default() -> None:
    assert TopicConfig().file_delete_delay_ms == 86_400_000


def test_settings_are_parsed_from_strings_and_stored_as_strings() -> None:
    config = TopicConfig.parse({"retention.ms": "1000", "preallocate": "TRUE", "min.cleanable.dirty.ratio": 0.25})
    assert (config.retention_ms, config.preallocate, config.min_cleanable_dirty_ratio) == (1000, True, 0.25)
    assert config.overrides() == {
        "retention.ms": "1000",
        "preallocate": "true",
        "min.cleanable.dirty.ratio": "0.25",
    }
    assert TopicConfig.parse(config.overrides()) == config


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment.bytes", str(2**20 - 1)),
        ("internal.segment.bytes", "13"),
        ("internal.segment.bytes", "-1"),
        ("message.timestamp.after.max.ms", "-1"),
        ("segment.bytes", str(2**31)),
        ("retention.ms", "-2"),
        ("retention.bytes", str(2**63)),
        ("retention.ms", "soon"),
        ("retention.ms", ""),
        ("cleanup.policy", "shrink"),
        ("compression.type", "lzma"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "10"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("preallocate", "yes"),
        ("max.compaction.lag.ms", "0"),
        ("batch.bytes", "0"),
        ("flush.messages", "0"),
        ("flush.ms", "-1"),
    ],
)
def test_a_value_out_of_range_is_refused_with_its_name_and_rule(name: str, value: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"{name} must be .*value={value}"):
        TopicConfig.parse({name: value})


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("retention.ms", "1d", ", without a unit: 1d is 86400000"),
        ("retention.ms", "7 Days", ", without a unit: 7 Days is 604800000"),
        ("segment.ms", "1.5h", ", without a unit: 1.5h is 5400000"),
        ("segment.bytes", "1GiB", ", without a unit: 1GiB is 1073741824"),
        ("segment.bytes", "1g", ", without a unit: 1g is 1073741824"),
        ("retention.bytes", "20 GB", ", without a unit: 20 GB is 20000000000"),
        ("retention.bytes", "1.5b", ", without a unit"),
        ("retention.ms", "1M", ", without a unit"),
        ("retention.ms", "5 m", ", without a unit"),
        ("retention.ms", "5 min", ", without a unit: 5 min is 300000"),
        ("retention.bytes", "9007199254740993b", ", without a unit: 9007199254740993b is 9007199254740993"),
        ("retention.ms", "0.29s", ", without a unit: 0.29s is 290"),
        ("segment.bytes", "1 TB", ", without a unit"),
        ("retention.ms", "1 GB", ""),
        ("flush.messages", "1k", ""),
        ("retention.ms", "soon", ""),
    ],
)
def test_a_number_with_a_unit_is_refused_with_the_right_number(name: str, value: str, hint: str) -> None:
    with pytest.raises(InvalidConfigError, match=rf"{name} must be .*[0-9r]{hint} \(value={value}\)"):
        TopicConfig.parse({name: value})


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(InvalidConfigError, match=r"unknown setting retenton.ms; did you mean retention.ms\?"):
        TopicConfig.parse({"retenton.ms": "1"})


def test_the_compaction_lags_must_not_cross() -> None:
    with pytest.raises(InvalidConfigError, match=r"min.compaction.lag.ms must not be above max"):
        TopicConfig.parse({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 9})


def test_each_default_is_valid() -> None:
    """Configs do not check their defaults again."""
    for setting in settings():
        assert TopicConfig.parse({setting.name: setting.default}).all()[setting.name] == setting.default


def test_none_sets_a_name_back_to_its_default() -> None:
    config = TopicConfig.parse({"retention.ms": 1, "segment.ms": 2})
    assert config.changed({"retention.ms": None, "segment.ms": 3}).overrides() == {"segment.ms": "3"}


def test_an_internal_segment_size_overrides_the_public_one_and_is_hidden() -> None:
    assert TopicConfig.parse({"segment.bytes": 2**20}).segment_size == 2**20
    config = TopicConfig.parse({"segment.bytes": 2**20, "internal.segment.bytes": 14})
    assert config.segment_size == 14
    assert config.changed({"internal.segment.bytes": None}).segment_size == 2**20
    assert [setting.name for setting in settings() if setting.name.startswith("internal")] == []


def test_a_segment_size_that_an_earlier_version_allowed_is_kept_but_not_set_again() -> None:
    config = TopicConfig.stored({"segment.bytes": "600"})
    assert (config.segment_size, config.overrides()) == (600, {"segment.bytes": "600"})
    assert config.changed({"retention.ms": 1}).overrides() == {"segment.bytes": "600", "retention.ms": "1"}
    assert config.changed({"segment.bytes": None}).segment_size == 2**30
    with pytest.raises(InvalidConfigError, match=r"segment.bytes must be between 1048576 and"):
        config.changed({"segment.bytes": 600})
    with pytest.raises(UnsupportedVersionError, match=r"segment.bytes must be between"):
        TopicConfig.stored({"segment.bytes": "13"})


def test_a_config_pickles() -> None:
    config = TopicConfig.parse({"retention.ms": 1})
    assert pickle.loads(pickle.dumps(config)) == config


def test_an_explicit_default_is_stored() -> None:
    config = TopicConfig.parse({"retention.ms": "604800000", "segment.ms": 5})
    assert config == TopicConfig(segment_ms=5)
    assert config.overrides() == {"retention.ms": "604800000", "segment.ms": "5"}
    assert TopicConfig.stored(config.overrides()).overrides() == config.overrides()
    assert config.changed({"retention.ms": None}).overrides() == {"segment.ms": "5"}


def test_defaults_apply_to_unset_settings_and_are_not_stored() -> None:
    topic_config = TopicConfig.parse({"retention.ms": "604800000", "segment.ms": 5})
    config = topic_config.with_defaults({"retention.ms": 1, "segment.ms": 2, "retention.bytes": 3})
    assert (config.retention_ms, config.segment_ms, config.retention_bytes) == (604_800_000, 5, 3)
    assert config.overrides() == topic_config.overrides()
    reset = config.changed({"segment.ms": None, "retention.bytes": 3})
    assert (reset.segment_ms, reset.retention_bytes) == (2, 3)
    assert reset.overrides() == {"retention.ms": "604800000", "retention.bytes": "3"}


def test_a_default_that_contradicts_the_topics_compaction_lag_is_ignored() -> None:
    topic_config = TopicConfig.parse({"min.compaction.lag.ms": 100})
    config = topic_config.with_defaults({"max.compaction.lag.ms": 50, "retention.ms": 1})
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms, config.retention_ms) == (100, 2**63 - 1, 1)


def test_settings_of_a_newer_library_are_kept_with_defaults() -> None:
    config = TopicConfig.stored({"new.setting": "x"}).with_defaults({"retention.ms": 1})
    assert config.overrides() == {"new.setting": "x"}

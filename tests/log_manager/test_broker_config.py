"""Broker settings: the intervals of tasks, and the defaults of topics."""

from __future__ import annotations

import re
from typing import Any

import pytest

from distlog.core.arrays import MAX_LONG
from distlog.core.config import HOUR_MS, TopicConfig
from distlog.core.errors import InvalidConfigError
from distlog.core.log_manager.broker_config import BrokerConfig


def defaults(**settings: object) -> dict[str, object]:
    return dict(
        BrokerConfig.parse({name.replace("_", "."): value for name, value in settings.items()}).topic_defaults
    )


def test_the_intervals_have_kafkas_defaults() -> None:
    config = BrokerConfig.parse({})
    assert config.initial_task_delay_ms == 30_000
    assert config.retention_check_interval_ms == 300_000
    assert config.flush_scheduler_interval_ms == MAX_LONG
    assert config.flush_offset_checkpoint_interval_ms == 60_000
    assert config.flush_start_offset_checkpoint_interval_ms == 60_000
    assert (config.cleaner_backoff_ms, config.cleaner_enable) == (15_000, True)
    assert config.topic_defaults == {}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"log_retention_hours": 2}, 2 * HOUR_MS),
        ({"log_retention_hours": 2, "log_retention_minutes": "3"}, 180_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3, "log_retention_ms": 4}, 4),
        ({"log_retention_ms": -1, "log_retention_hours": 2}, -1),
        ({"log_retention_minutes": -1}, -1),
    ],
)
def test_the_smaller_unit_of_a_time_applies(settings: dict[str, object], expected: int) -> None:
    assert defaults(**settings) == {"retention.ms": expected}


def test_broker_settings_are_topic_settings_under_other_names() -> None:
    settings = defaults(
        log_segment_bytes=2 << 20,
        log_roll_hours=1,
        log_roll_jitter_ms=5,
        log_index_interval_bytes=1,
        log_index_size_max_bytes=100,
        log_cleanup_policy="compact",
        log_message_timestamp_type="LogAppendTime",
        log_flush_interval_messages=7,
        log_segment_delete_delay_ms=8,
        message_max_bytes=9,
    )
    config = TopicConfig.parse(settings)
    assert (config.segment_bytes, config.segment_ms, config.segment_jitter_ms) == (2 << 20, HOUR_MS, 5)
    assert (config.index_interval_bytes, config.segment_index_bytes, config.cleanup_policy) == (1, 100, "compact")
    assert (config.message_timestamp_type, config.flush_messages) == ("LogAppendTime", 7)
    assert (config.file_delete_delay_ms, config.max_message_bytes) == (8, 9)


def test_flush_ms_is_the_flush_interval_or_else_the_schedulers() -> None:
    assert defaults(log_flush_scheduler_interval_ms=5) == {"flush.ms": 5}
    assert defaults(log_flush_scheduler_interval_ms=5, log_flush_interval_ms=9) == {"flush.ms": 9}


def test_other_settings_of_server_properties_are_ignored() -> None:
    config = BrokerConfig.parse({"listeners": "PLAINTEXT://:9092", "log.dirs": "/a,/b", "log.cleaner.threads": "4"})
    assert config == BrokerConfig.parse({})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"log.retention.hour": 1}, "unknown setting log.retention.hour; did you mean log.retention.hours?"),
        ({"log.zzz": 1}, "unknown setting log.zzz: use one of"),
        ({"log.retention.ms": 0}, "log.retention.ms must be -1 (no limit) or at least 1"),
        ({"log.retention.minutes": "soon"}, "log.retention.minutes must be a whole number"),
        ({"log.retention.hours": "1d"}, "log.retention.hours must be a whole number, without a unit: 1d is 24"),
        ({"log.roll.hours": "90m"}, "log.roll.hours must be a whole number, without a unit (value=90m)"),
        ({"log.segment.bytes": "1GiB"}, "without a unit: 1GiB is 1073741824"),
        ({"log.roll.hours": 0}, "log.roll.hours: segment.ms must be between 1"),
        ({"log.segment.bytes": 5}, "log.segment.bytes: segment.bytes must be between 1048576"),
        ({"log.cleanup.policy": "keep"}, "log.cleanup.policy: cleanup.policy must be one of"),
        ({"log.cleaner.backoff.ms": 0}, "log.cleaner.backoff.ms must be between 1"),
        ({"log.cleaner.enable": "maybe"}, "log.cleaner.enable must be true or false"),
        ({"log.roll.hours": MAX_LONG}, "log.roll.hours: segment.ms must be between 1"),
        (
            {"log.cleaner.min.compaction.lag.ms": 2, "log.cleaner.max.compaction.lag.ms": 1},
            "min.compaction.lag.ms must not be above",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_its_own_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=re.escape(message)):
        BrokerConfig.parse(settings)

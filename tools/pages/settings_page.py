"""The reference of a topic's settings, from `distlog.core.config`."""

from __future__ import annotations

from distlog.core.config import Setting, settings
from tools.pages.markdown import code, table

_HEAD = """# Settings of a topic

Names, defaults and ranges are as in Kafka 4.1, except for three: `batch.bytes` is distlog's own;
`file.delete.delay.ms` is a day, not a minute; `flush.messages` is 1, so acknowledged records are durable.
[Durability](../guarantees.md#durability-of-direct-appends) says what the flush settings promise.

They are given as `config={"retention.ms": -1}` in Python, and as `--config retention.ms=-1` to commands and jobs.
`topic.alter_config` and `distlog alter` change them. Kafka's settings for replication and tiering mean nothing here,
and are refused.

As in Kafka, `internal.segment.bytes` is for tests: it replaces `segment.bytes`, and may be as small as 14. A
`segment.bytes` below 1 MiB that an earlier version set stays in force.

"""


def text() -> str:
    """The page."""
    return _HEAD + table(["setting", "default", "rule", "meaning"], map(_row, settings()))


def _row(setting: Setting) -> list[str]:
    default = str(setting.default).lower() if isinstance(setting.default, bool) else str(setting.default)
    return [code(setting.name), code(default), setting.rule, setting.meaning]

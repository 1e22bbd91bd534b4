"""Writes Kafka's checkpoint files of offsets (`OffsetCheckpointFile`): text, a line per partition.

    0                            the version of the format
    2                            how many lines follow
    <topic> <partition> <offset>

distlog does not read them: its commit log and the partitions' lock pages say the same. They are for Kafka's tools,
and for people.
"""

from __future__ import annotations

from collections.abc import Mapping

from distlog.core.storage.storage import Storage

RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_START_OFFSETS = "log-start-offset-checkpoint"
_VERSION = 0


def write_offset_checkpoint(root: Storage, name: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Replace the file `name` in `root`; a reader sees the old offsets or the new ones, and so does a power loss.

    `offsets` are by (topic, partition). Raises StorageError.
    """
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in sorted(offsets.items())]
    text = "".join(f"{line}\n" for line in (_VERSION, len(lines), *lines))
    root.put(name, text.encode())

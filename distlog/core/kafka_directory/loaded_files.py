"""Which files of a partition's folder count, by the rules that a broker follows when it starts (`LogLoader`).

A broker replaces segments in steps: it writes `.cleaned` files, renames them to `.swap` from the highest offset down,
deletes the old files, and renames the new ones to their names. If it stopped in between, this finds out whether the
old or the new files count. Nothing is renamed or deleted here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from distlog.core.config import MAX_LONG
from distlog.core.kafka_directory.directory_names import FileName, parse_file
from distlog.core.paths import SNAPSHOT_SUFFIX

LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class LoadedFiles:
    """The files that count, by their present names.

    `segments` has, by base offset in ascending order, the file of each suffix that there is. `snapshots` are the
    producer snapshots by offset. `left_out` says of each other file of a log why it does not count.
    """

    segments: dict[int, dict[str, str]] = field(default_factory=dict)
    snapshots: dict[int, str] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def loaded_files(names: Iterable[str], next_offset: Callable[[str], int]) -> LoadedFiles:
    """The files that count among `names`; `next_offset` tells the offset behind the last batch of a `.log.swap`."""
    found = {name: parsed for name in sorted(names) if (parsed := parse_file(name)) is not None}
    left_out = _unfinished(found)
    swaps = {name: parsed for name, parsed in found.items() if parsed.temporary == ".swap" and name not in left_out}
    logs = [(parsed.offset, name) for name, parsed in swaps.items() if parsed.suffix == LOG_SUFFIX]
    first = min((offset for offset, _ in logs), default=0)
    end = max((next_offset(name) for _, name in logs), default=0)
    for name, parsed in found.items():
        if not parsed.temporary and first <= parsed.offset < end:
            left_out[name] = "replaced by a .swap file"
    plain = {name: parsed for name, parsed in found.items() if not parsed.temporary and name not in left_out}
    return _by_offset({**plain, **swaps}, left_out)


def _unfinished(found: dict[str, FileName]) -> dict[str, str]:
    """The files of replacements that had not begun to take effect, and those that a broker wanted to delete."""
    cleaned = min((parsed.offset for parsed in found.values() if parsed.temporary == ".cleaned"), default=MAX_LONG)
    reasons = {
        ".deleted": "was being deleted",
        ".cleaned": "of a cleaning that did not finish",
        ".swap": "of a replacement that did not finish",
    }
    return {
        name: reasons[parsed.temporary]
        for name, parsed in found.items()
        if parsed.temporary and (parsed.temporary != ".swap" or parsed.offset >= cleaned)
    }


def _by_offset(files: dict[str, FileName], left_out: dict[str, str]) -> LoadedFiles:
    loaded = LoadedFiles(left_out=left_out)
    for name, parsed in files.items():
        if parsed.suffix == SNAPSHOT_SUFFIX:
            loaded.snapshots[parsed.offset] = name
        else:
            # a .swap file comes after the plain one in the order of names, and takes its place as a rename would
            loaded.segments.setdefault(parsed.offset, {})[parsed.suffix] = name
    for offset in [offset for offset, suffixes in loaded.segments.items() if LOG_SUFFIX not in suffixes]:
        left_out.update(dict.fromkeys(loaded.segments.pop(offset).values(), "an index without a log"))
    ordered = dict(sorted(loaded.segments.items()))
    return LoadedFiles(ordered, loaded.snapshots, left_out)

"""The JSON of many actions of one kind as one action in columns: parts of bundles that are added, segments removed.

    {"adds":{"stems":["<stem>"],"stem":0,"partition":[0,1,1,1],"base_offset":[500,0,0,0],"next_offset":50,...}}
    {"removes":{"stems":["<stem>",...],"stem":[0,1,0,0],"partition":[0,0,1,0]}}

A column is a list with a value for each action, or one value for all. `stem` is a number in `stems`. A column of
STEPS has the first value, and then the differences. One of RELATIVE has differences to another column. A column
that has its field's default is left out. So a part of a bundle takes a tenth of the bytes that it takes alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from distlog.core.commits.format import fields
from distlog.core.commits.format.actions import Action, Add, Remove
from distlog.core.commits.format.segment_info import SegmentInfo

#: The names of the actions in columns.
ADDS, REMOVES = "adds", "removes"
#: A commit of more actions has no columns: `json_text` refuses a text of too many values.
MOST_ACTIONS = 28_000
_MOST_VALUES = 100 * MOST_ACTIONS

STEPS = frozenset(
    {"partition", "base_offset", "created_ms", "log_position", "offset_index_position", "time_index_position"}
)
#: In the order in which they are read.
RELATIVE = {
    "next_offset": "base_offset",
    "offset_of_max_timestamp": "base_offset",
    "max_timestamp": "created_ms",
    "first_timestamp": "max_timestamp",
    "min_timestamp": "max_timestamp",
    "last_batch_crc": "first_batch_crc",
}
_CHECKS = fields.checks(SegmentInfo)
_DEFAULTS = {name: spec.default for name, spec in SegmentInfo.__dataclass_fields__.items() if name in _CHECKS}


def runs(actions: Sequence[Action]) -> Iterator[tuple[str | None, list[Action]]]:
    """The actions in runs, each with the name that it has in columns; None for what is written one by one."""
    if len(actions) > MOST_ACTIONS:
        yield None, list(actions)
        return
    for kind, group in itertools.groupby(actions, _kind):
        run = list(group)
        yield kind if kind and _pays(kind, run) else None, run


def uses_columns(actions: Sequence[Action]) -> bool:
    """Whether a commit of `actions` has actions in columns, which a reader must know."""
    return any(kind for kind, _ in runs(actions))


def _kind(action: Action) -> str | None:
    if isinstance(action, Add) and action.segment.is_bundled and not action.segment.unknown:
        return ADDS
    return REMOVES if isinstance(action, Remove) else None


def _pays(kind: str, run: Sequence[Any]) -> bool:
    """Whether columns are worth it, so that topics without bundles stay readable for libraries without them."""
    return len(run) > 1 if kind == ADDS else 2 * len({action.stem for action in run}) <= len(run)


def write_run(kind: str, run: Sequence[Any]) -> dict[str, Any]:
    """The JSON object of a run that has the name `kind`."""
    rows = [action.segment for action in run] if kind == ADDS else run
    names = _CHECKS if kind == ADDS else ("partition", "stem")
    return {kind: _encoded({name: [getattr(row, name) for row in rows] for name in names})}


def read_run(kind: str, body: Any) -> list[Action]:
    """The actions that `write_run` wrote; raises ValueError."""
    if not isinstance(body, dict) or not isinstance(body.get("partition"), list):
        raise ValueError(f"{kind} must be an object of columns, among them a list of partitions")
    columns = _decoded({name: column for name, column in body.items() if name != "stems"}, body.get("stems"))
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if kind == ADDS:
        return [Add(fields.read(SegmentInfo, row)) for row in rows]
    return [fields.read(Remove, row) for row in rows]


def _encoded(columns: dict[str, list[Any]]) -> dict[str, Any]:
    stems = {stem: number for number, stem in enumerate(dict.fromkeys(columns["stem"]))}
    encoded = {**columns, "stem": [stems[stem] for stem in columns["stem"]]}
    for name in STEPS & columns.keys():
        encoded[name] = [after - before for before, after in itertools.pairwise([0, *columns[name]])]
    for name, other in RELATIVE.items():
        if name in columns:
            encoded[name] = [own - base for own, base in zip(columns[name], columns[other], strict=True)]
    short = {name: _short(column) for name, column in encoded.items() if set(columns[name]) != {_DEFAULTS.get(name)}}
    # the list that says how many there are
    return {"stems": list(stems), **short, "partition": encoded["partition"]}


def _short(column: list[Any]) -> Any:
    return column[0] if len(set(column)) == 1 else column


def _decoded(body: dict[str, Any], stems: Any) -> dict[str, list[Any]]:
    count = len(body["partition"])
    # a value for all takes a few bytes, however many it stands for
    if count > MOST_ACTIONS or count * len(body) > _MOST_VALUES:
        raise ValueError(f"{count} actions of {len(body)} values are more than a commit has")
    columns = {name: _long(name, column, count) for name, column in body.items()}
    if not isinstance(stems, list):
        raise ValueError("stems must be a list")
    if "stem" not in columns:
        # without it the files of one segment would stand for those of another
        raise ValueError("stem: there must be a column of stems")
    number = fields.Integer(0, len(stems) - 1)
    columns["stem"] = [stems[number(each)] for each in columns["stem"]]
    for name in STEPS & columns.keys():
        columns[name] = list(itertools.accumulate(_numbers(name, columns[name])))
    for name, other in RELATIVE.items():
        if name in columns:
            bases = columns.get(other, [_DEFAULTS[other]] * count)
            columns[name] = [
                own + base for own, base in zip(_numbers(name, columns[name]), _numbers(other, bases), strict=True)
            ]
    return columns


def _long(name: str, column: Any, count: int) -> list[Any]:
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise ValueError(f"{name}: a column must have a value for each of the {count} partitions")
    return column


def _numbers(name: str, column: list[Any]) -> list[int]:
    if set(map(type, column)) - {int}:
        raise ValueError(f"{name}: must be integers")
    return column

"""The JSON of actions: an object with one member, which names the kind of the action; or many in columns.

A library that does not know an action must not write the topic. It must not read it either, unless the action says
`"reader_safe":true`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distlog.core.commits.format import fields
from distlog.core.commits.format.action_columns import ADDS, MOST_ACTIONS, REMOVES, read_run, runs, write_run
from distlog.core.commits.format.actions import (
    Action,
    Active,
    Add,
    Cleaned,
    Create,
    Drop,
    GcFloor,
    Manifest,
    Pin,
    ProducerTransaction,
    Remove,
    Restore,
    Seal,
    SetConfig,
    SetLogStartOffset,
    SetPartitions,
    SetTransaction,
    UnknownAction,
    Unpin,
)
from distlog.core.commits.format.features import FEATURE
from distlog.core.commits.format.segment_info import SegmentInfo
from distlog.core.errors import UnsupportedVersionError

_NAMES: dict[str, type] = {
    "create": Create,
    "drop": Drop,
    "partitions": SetPartitions,
    "config": SetConfig,
    "add": Add,
    "remove": Remove,
    "log_start_offset": SetLogStartOffset,
    "restore": Restore,
    "transaction": SetTransaction,
    "producer_transaction": ProducerTransaction,
    "cleaned": Cleaned,
    "active": Active,
    "seal": Seal,
    "gc_floor": GcFloor,
    "pin": Pin,
    "unpin": Unpin,
    "manifest": Manifest,
}
_NAME_OF = {kind: name for name, kind in _NAMES.items()}


def read_actions(items: Any) -> tuple[Action, ...]:
    """The actions of a commit, from a list of JSON objects; raises as `read_item` does."""
    if not isinstance(items, list):
        raise ValueError("must be a list")
    return tuple(read_items(items))


def read_items(items: Iterable[Any]) -> list[Action]:
    """The actions that the JSON objects describe; raises as `read_item` does, and for more than columns can tell."""
    actions, has_columns = list[Action](), False
    for item in items:
        actions += read_item(item)
        has_columns = has_columns or not item.keys().isdisjoint((ADDS, REMOVES))
        if has_columns and len(actions) > MOST_ACTIONS:
            raise ValueError(f"{len(actions)} actions, some in columns, are more than a commit has")
    return actions


def write_items(actions: Sequence[Action]) -> Iterator[dict[str, Any]]:
    """The JSON objects that `read_item` turns into equal actions."""
    for kind, run in runs(actions):
        if kind is None:
            yield from map(_write_action, run)
        else:
            yield write_run(kind, run)


def read_item(item: Any) -> list[Action]:
    """The actions that the JSON object `item` describes; raises ValueError, and UnsupportedVersionError."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
    return read_run(name, body) if name in (ADDS, REMOVES) else [_read_action(name, body)]


def _read_action(name: str, body: Any) -> Action:
    if name not in _NAMES:
        return _unknown_action(name, body)
    if name == "add":
        return Add(fields.read(SegmentInfo, body))
    action: Action = fields.read(_NAMES[name], body)
    return action


def _unknown_action(name: str, body: Any) -> UnknownAction:
    if isinstance(body, dict) and body.get("reader_safe") is True:
        return UnknownAction(FEATURE(name))
    raise UnsupportedVersionError(f"a newer distlog wrote the action {name[:100]!r}: upgrade")


def _write_action(action: Action) -> dict[str, Any]:
    if isinstance(action, UnknownAction):
        raise UnsupportedVersionError(f"the action {action.kind!r} cannot be written: upgrade")
    body = action.segment if isinstance(action, Add) else action
    return {_NAME_OF[type(action)]: fields.write(body)}

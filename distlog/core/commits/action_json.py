"""The JSON of actions: an object with one member, which names the kind of the action.

A library that does not know an action must not write the topic. It must not read it either, unless the action says
`"reader_safe":true`.
"""

from __future__ import annotations

from typing import Any

from distlog.core.commits import fields
from distlog.core.commits.actions import (
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
from distlog.core.commits.features import FEATURE
from distlog.core.commits.segment_info import SegmentInfo
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
    """The actions of a commit, from a list of JSON objects; raises as `read_action` does."""
    if not isinstance(items, list):
        raise ValueError("must be a list")
    return tuple(read_action(item) for item in items)


def read_action(item: Any) -> Action:
    """The action that the JSON object `item` describes; raises ValueError, and UnsupportedVersionError."""
    if not isinstance(item, dict) or len(item) != 1:
        raise ValueError("an action must be an object with one member")
    ((name, body),) = item.items()
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


def write_action(action: Action) -> dict[str, Any]:
    """The JSON object that `read_action` turns into an equal action."""
    if isinstance(action, UnknownAction):
        raise UnsupportedVersionError(f"the action {action.kind!r} cannot be written: upgrade")
    body = action.segment if isinstance(action, Add) else action
    return {_NAME_OF[type(action)]: fields.write(body)}

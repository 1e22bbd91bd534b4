"""Writes the messages of Kafka's protocol for the gateway, from kio's schemas: python -m tools.kafka_messages.

kio has them from Kafka's message files, as a class for each part of each version. To import the classes of a version
takes ms, which a request would wait for, and they take memory.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from kio.index import load_request_schema, load_response_schema

from distlog.gateway.apis import APIS
from distlog.gateway.protocol.messages import EMPTY_VALUES, FIXED, empty_value

FILE = Path(__file__).parents[1] / "distlog" / "gateway" / "protocol" / "messages.txt"
_MS = datetime.timedelta(milliseconds=1)
_LOADERS = {"request": load_request_schema, "response": load_response_schema}


def messages() -> str:
    """The text of the file: a block for each request and response of an API of the gateway, in all its versions."""
    blocks = []
    for _, api in sorted(APIS.items()):
        for direction, load in _LOADERS.items():
            kinds: dict[int, Any] = {version: load(api.key, version) for version in range(api.oldest, api.newest + 1)}
            flexible = min((version for version, kind in kinds.items() if kind.__flexible__), default=api.newest + 1)
            head = f"{direction} {api.key} {kinds[api.newest].__name__} {api.oldest} {api.newest} {flexible}"
            blocks.append("\n".join([head, *_lines(kinds, "")]))
    return "\n\n".join(blocks) + "\n"


def _lines(kinds: Mapping[int, Any], indent: str) -> Iterator[str]:
    """The lines of a message, of which each version has a class."""
    names, by_name = list[str](), dict[str, dict[int, dataclasses.Field[Any]]]()
    for version, kind in kinds.items():
        index = 0
        for version_field in dataclasses.fields(kind):
            if version_field.name not in by_name:
                names.insert(index, version_field.name)
            index = names.index(version_field.name) + 1
            by_name.setdefault(version_field.name, {})[version] = version_field
    for name in names:
        fields = by_name[name]
        described = {version: _described(version_field) for version, version_field in fields.items()}
        words, nested = described[max(described)]
        nullable = sorted(
            version for version, version_field in fields.items() if type(None) in get_args(version_field.type)
        )
        attributes = [f"since={min(fields)}"] if min(fields) > min(kinds) else []
        attributes += [f"until={max(fields)}"] if max(fields) < max(kinds) else []
        attributes += [f"null={nullable[0]}"] if nullable else []
        assert list(fields) == list(range(min(fields), max(fields) + 1)), name
        assert not nullable or nullable == list(range(nullable[0], max(fields) + 1)), name
        assert all(version_field[0] == words for version_field in described.values()), name
        yield " ".join([indent + name, *words[:1], *attributes, *words[1:]])
        if nested is not None:
            inner = {version: version_field[1] for version, version_field in described.items()}
            yield from _lines(inner, indent + " ")


def _described(field: dataclasses.Field[Any]) -> tuple[list[str], Any]:
    """The kind of a field, its tag and its default, as words; and the class of its messages, if it has these."""
    parts = (field.type, *get_args(field.type))
    nested = [inner for part in parts for inner in (part, *get_args(part)) if dataclasses.is_dataclass(inner)]
    is_array = any(getattr(part, "__origin__", None) is tuple for part in parts)
    kind = nested[0].__name__ if nested else field.metadata["kafka_type"]
    if not nested and kind not in FIXED and kind not in EMPTY_VALUES:
        raise NotImplementedError(f"a field of Kafka's protocol has an unknown kind: {field.name} {kind}")
    words = [kind + "[]" * is_array]
    if "tag" in field.metadata:
        words.append(f"tag={field.metadata['tag']}")
    default = field.default
    if default is not dataclasses.MISSING and not dataclasses.is_dataclass(default):
        if isinstance(default, datetime.timedelta):
            default = default // _MS
        elif default is None and kind == "datetime_i64":
            default = -1
        if default != empty_value(kind, is_array=is_array) or type(default) is bool:
            words.append(f"default={json.dumps(default)}")
    return words, nested[0] if nested else None


if __name__ == "__main__":
    FILE.write_text(messages(), encoding="utf-8")

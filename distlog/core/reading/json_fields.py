"""Fields of values that are JSON, as columns: DuckDB takes them out of whole batches at once.

pyarrow's own reader of JSON takes twice the processor time, must know every type beforehand, and fails where two
records have different types in one field.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from distlog.core.batches.record_batch import SCHEMA
from distlog.core.errors import InvalidConfigError, InvalidRecordError
from distlog.core.optional import optional

OnError = Literal["fail", "null"]

#: What a read needs beside the columns asked for.
NEEDED = ("partition", "offset", "value")
_INTEGERS = {"BIGINT", "UBIGINT"}
#: The type of a column whose values are all of these kinds; else it is text.
_TYPES = ((_INTEGERS, pa.int64()), ({*_INTEGERS, "DOUBLE"}, pa.float64()), ({"BOOLEAN"}, pa.bool_()))
#: Nothing is read but the batch, and nothing is fetched. One thread, since the scan decodes ahead in others.
_SETTINGS = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def named_paths(paths: Sequence[str], named: Mapping[str, str], columns: Sequence[str]) -> dict[str, str]:
    """The paths by the names of their columns: `$.a.b` is `a.b`, if it is not given another.

    Raises InvalidConfigError for no path, what is no path, and a name that is there twice.
    """
    names = [path.removeprefix("$").removeprefix(".") or "value" if isinstance(path, str) else "" for path in paths]
    found = {**dict(zip(names, paths, strict=True)), **named}
    for name, path in found.items():
        if not isinstance(path, str) or not path.startswith("$"):
            raise InvalidConfigError("a path begins with $, as in $.user.name or $.tags[0]", path=repr(path))
        if name in columns:
            raise InvalidConfigError(f"a column is called {name} already: json(my_name={path!r})", path=path)
    if not found or len(found) < len(paths) + len(named):
        raise InvalidConfigError("json needs paths, each column once: json('$.user', city='$.address.city')")
    return found


def json_fields(
    batches: Iterable[pa.RecordBatch], columns: Sequence[str], paths: Mapping[str, str], on_error: OnError
) -> pa.Table:
    """The `columns` of batches that have NEEDED too, with the fields at `paths` in place of `value`, or behind.

    A field is null where it is missing or null. Raises InvalidRecordError for the first value that is no JSON, or
    with `on_error` null has no fields there.
    """
    if on_error not in get_args(OnError):
        raise ValueError(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error}")
    taker = _Taker(paths, on_error)
    others = [name for name in columns if name != "value"]
    chunks: dict[str, list[pa.Array]] = {name: [] for name in (*others, *paths)}
    for batch in batches:
        for name in others:
            chunks[name].append(batch.column(name))
        for name, texts in zip(paths, taker.take(batch), strict=True):
            chunks[name] += texts.chunks
    made = {name: pa.chunked_array(chunks[name], SCHEMA.field(name).type) for name in others}
    made |= {name: _typed(pa.chunked_array(chunks[name], pa.string()), taker.kinds[name]) for name in paths}
    at = list(columns).index("value") if "value" in columns else len(columns)
    return pa.table({name: made[name] for name in (*columns[:at], *paths, *columns[at + 1 :])})


class _Taker:
    """Takes the fields out of batches, as texts; `kinds` are the kinds of JSON values met in each field."""

    def __init__(self, paths: Mapping[str, str], on_error: OnError) -> None:
        self._duckdb = optional("duckdb", "json()", "'distlog[duckdb]'")
        self._connection = self._duckdb.connect(":memory:", config=_SETTINGS)
        self._paths, self._on_error = list(paths.values()), on_error
        self.kinds: dict[str, set[str]] = {name: set() for name in paths}
        value = "value" if on_error == "fail" else "CASE WHEN json_valid(value) THEN value END"
        numbers = range(1, len(paths) + 1)
        fields = ", ".join(f"texts[{number}], kinds[{number}]" for number in numbers)
        self._query = (
            f"SELECT {fields} FROM (SELECT json_extract_string(value, $paths) AS texts, "
            f"json_type(value, $paths) AS kinds FROM (SELECT {value} AS value FROM given))"
        )

    def take(self, batch: pa.RecordBatch) -> list[pa.ChunkedArray]:
        """The texts of each field."""
        texts = _texts(batch.column("value"))
        if self._on_error == "fail" and texts.null_count > batch.column("value").null_count:
            self._fail(batch, texts)
        try:
            found = self._run(self._query, texts, {"paths": self._paths})
        except self._duckdb.BinderException as error:
            reason = str(error).removeprefix("Binder Error: ")
            raise InvalidConfigError(f"a path is wrong: {reason}", paths=self._paths) from None
        except self._duckdb.InvalidInputException:
            self._fail(batch, texts)
            raise
        for kinds, column in zip(self.kinds.values(), found.columns[1::2], strict=True):
            kinds.update(pc.unique(column).drop_null().to_pylist())
        return list(found.columns[::2])

    def _fail(self, batch: pa.RecordBatch, texts: pa.Array) -> None:
        """Raise InvalidRecordError for the first value that is no JSON."""
        valid = self._run("SELECT coalesce(json_valid(value), false) FROM given", texts).column(0)
        bad = pc.and_(pc.is_valid(batch.column("value")), pc.invert(valid.combine_chunks()))
        for row in np.flatnonzero(bad.to_numpy(zero_copy_only=False))[:1].tolist():
            raise InvalidRecordError(
                "the value is no JSON; on_error='null' leaves the fields of such records null",
                partition=batch.column("partition")[row].as_py(),
                offset=batch.column("offset")[row].as_py(),
            )

    def _run(self, query: str, texts: pa.Array, parameters: Mapping[str, Any] | None = None) -> pa.Table:
        self._connection.register("given", pa.table({"value": texts}))
        try:
            return self._connection.sql(query, params=parameters).to_arrow_table()
        except RuntimeError as error:
            # DuckDB's words for Ctrl-C
            if str(error) == "Query interrupted":
                raise KeyboardInterrupt from None
            raise


def _texts(values: pa.Array) -> pa.Array:
    """The values as texts; null where one is not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        half = len(values) // 2
        if not half:
            return pa.nulls(1, pa.string())
        return pa.concat_arrays([_texts(values.slice(0, half)), _texts(values.slice(half))])


def _typed(texts: pa.ChunkedArray, kinds: set[str]) -> pa.ChunkedArray:
    kinds = kinds - {"NULL"}
    for accepted, kind in _TYPES:
        if kinds and kinds <= accepted:
            try:
                return texts.cast(kind)
            except pa.ArrowInvalid:
                return texts  # numbers that the type cannot hold stay as they are written
    return texts

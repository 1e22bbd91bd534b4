"""The docstrings of the public API name each parameter, and their examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import distlog
from distlog.core.topic import _INTERNAL

#: Methods that other modules of the library call.
INTERNAL = {f"Topic.{name}" for name in _INTERNAL} | {
    *("Writer.reset_in_child", "Writer.commit_at_exit", "Producer.reset_in_child"),
    *("SparkExecutor.clean", "SparkExecutor.map", "TopicConfig.stored", "TopicConfig.with_defaults"),
    # a tiered topic refuses them
    *("TieredTopic.history", "TieredTopic.groups", "TieredTopic.verify"),
}
#: The classes whose methods with parameters need an example, as functions do.
CALLED = ("Topic", "Scan", "Writer", "Producer", "Transaction", "Consumer")
#: First words of a sentence that is not imperative.
DESCRIPTIVE = re.compile(r"(The|A|An|All|Several|Some|This|Each|True|\w+[^s]s)\b")
NEEDS = {"to_pandas": "pandas", "to_polars": "polars", "plot": "matplotlib", "avro": "fastavro", "protobuf": "ptars"}
NEEDS |= {"to_duckdb": "duckdb", "sql": "duckdb", "sql_connection": "duckdb"}


def returned_classes(function: Callable[..., Any]) -> Iterator[type]:
    """The distlog classes that the annotation of a function's result names."""
    for name in re.findall(r"\w+", str(function.__annotations__.get("return", ""))):
        value = vars(sys.modules[function.__module__]).get(name)
        if inspect.isclass(value) and value.__module__.startswith("distlog."):
            yield value


def public_callables(module: Any) -> dict[str, Callable[..., Any]]:
    """The functions of a module, its classes with Args or an example, and the methods of its and returned classes."""
    callables = dict[str, Callable[..., Any]]()
    pending = [value for name in module.__all__ if callable(value := getattr(module, name))]
    for value in pending:
        if not inspect.isclass(value):
            callables[value.__name__] = value
            pending += [kind for kind in returned_classes(value) if kind not in pending]
            continue
        if "Args:" in (value.__doc__ or "") or "Examples:" in (value.__doc__ or ""):
            callables[value.__name__] = value
        for name, member in vars(value).items():
            method, full_name = getattr(member, "__func__", member), f"{value.__name__}.{name}"
            if inspect.isfunction(method) and not name.startswith("_") and full_name not in INTERNAL:
                callables[full_name] = method
                pending += [kind for kind in returned_classes(method) if kind not in pending]
    return callables


CORE = public_callables(distlog)


def spark_callables() -> dict[str, Callable[..., Any]]:
    callables = public_callables(import_module("distlog.spark"))
    return {name: value for name, value in callables.items() if value.__module__.startswith("distlog.spark")}


def parameters(function: Callable[..., Any]) -> list[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    named = inspect.signature(function).parameters.items()
    return [stars.get(parameter.kind, "") + name for name, parameter in named if name not in ("self", "cls")]


def section(function: Callable[..., Any], title: str) -> str:
    """The text of a section of the docstring, without its indent."""
    match = re.search(rf"^{title}:\n((?:    .*\n|\n)+)", f"{inspect.getdoc(function)}\n", re.MULTILINE)
    return inspect.cleandoc(match[1]) if match else ""


def faults(name: str, function: Callable[..., Any]) -> Iterator[str]:
    names, doc, is_class = parameters(function), inspect.getdoc(function) or "", inspect.isclass(function)
    entries = re.findall(r"^(\*{0,2}\w+): \S", section(function, "Args"), re.MULTILINE)
    # a method that makes the object may have the Args of its class
    if entries != names and (entries or not is_class):
        yield f"Args has {entries}, and the parameters are {names}"
    has_result = not is_class and function.__annotations__.get("return") != "None"
    if bool(section(function, "Returns")) != (has_result and bool(names)):
        yield "Returns describes the result of a function with parameters"
    if not is_class and DESCRIPTIVE.match(doc):
        yield "the first line is not imperative"
    if names and ("." not in name or name.split(".")[0] in CALLED) and ">>> " not in section(function, "Examples"):
        yield "an example is missing"


def all_faults(callables: Mapping[str, Callable[..., Any]]) -> dict[str, list[str]]:
    return {name: texts for name, value in callables.items() if (texts := list(faults(name, value)))}


def test_every_docstring_has_an_entry_for_each_parameter_and_the_result() -> None:
    assert len(CORE) > 100
    assert all_faults(CORE) == {}


@pytest.mark.spark
def test_every_docstring_of_spark_has_an_entry_for_each_parameter_and_the_result() -> None:
    pytest.importorskip("pyspark")
    assert all_faults(spark_callables()) == {}


def with_examples(callables: Mapping[str, Callable[..., Any]]) -> list[str]:
    return [name for name, value in callables.items() if section(value, "Examples")]


def example_names(folder: Path) -> dict[str, Any]:
    """The names that examples use: `topic` has two records in partition 0, and one in partition 1."""
    topic = distlog.create(f"{folder}/clicks", partitions=2, config={"retention.ms": -1})
    records = [
        {"partition": 0, "key": b"anna", "value": b'{"page": "/start"}', "timestamp": "2025-01-01T00:00:00Z"},
        {"partition": 0, "key": b"bert", "value": b'{"page": "/help"}', "timestamp": "2025-01-01T00:00:01Z"},
        {"partition": 1, "key": b"carl", "value": b'{"page": "/start"}', "timestamp": "2025-01-01T00:00:02Z"},
    ]
    topic.append(records)
    return {"distlog": distlog, "topic": topic}


def check_example(name: str, function: Callable[..., Any], names: dict[str, Any]) -> None:
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(function) or "", names, name, None, None)
    report = list[str]()
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS)
    assert runner.run(test, out=report.append).failed == 0, "".join(report)


@pytest.mark.parametrize("name", with_examples(CORE))
def test_an_example_prints_its_output(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(NEEDS.get(name.rpartition(".")[2], "distlog"))
    monkeypatch.chdir(tmp_path)
    check_example(name, CORE[name], example_names(tmp_path))


@pytest.mark.spark
def test_the_examples_of_spark_print_their_output(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callables, module = spark_callables(), import_module("distlog.spark")
    for name in with_examples(callables):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        exported = {export: getattr(module, export) for export in module.__all__}
        check_example(name, callables[name], {**exported, **example_names(folder), "spark": spark})

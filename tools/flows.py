"""Traces the main flows and counts what a reader must follow: `python -m tools.flows [--write]`.

A flow is run once to warm up, and then traced in all threads (Produce: in the threads of network and handlers): the
files of distlog that it crosses, the files that call no other, its functions, its calls into another file,
the deepest stack, and the calls into a higher layer. A task of a thread pool counts as called by the code that gave
it to the pool. `--write` puts the table into CONTRIBUTING.md.
"""

from __future__ import annotations

import argparse
import ast
import socket
import struct
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa

import distlog
from distlog.gateway.gateway_server import GatewayServer
from distlog.gateway.protocol.messages import ChunkWriter, message_writer, request_schema

ROOT = Path(__file__).parents[1]
LIBRARY = f"{ROOT / 'distlog'}/"
#: Runs what it is given, as the executors of the standard library, whose calls are not traced either.
POOL = f"{LIBRARY}core/storage/calls.py"
PAGE = ROOT / "CONTRIBUTING.md"
#: The API and the version of the request that is traced.
_PRODUCE, _PRODUCE_VERSION = 0, 9
_REST_S = 0.2
START, END = "<!-- flows -->\n", "<!-- end of flows -->\n"
ROWS = pa.table({"key": [b"a", b"b"] * 50, "value": [b"x" * 100] * 100})


def is_caller(file: str) -> bool:
    """Whether a reader goes from a call in `file` to the called function: not from the pool that runs given work."""
    return file.startswith(LIBRARY) and file != POOL


class Trace:
    """The layers that the traced calls cross; `layer_of` returns the layer of a module.

    Only threads whose names start with `thread_prefix` are traced, while `is_on`.
    """

    def __init__(self, layer_of: Callable[[str], int], thread_prefix: str = "") -> None:
        self.is_on, self._thread_prefix = True, thread_prefix
        self.files, self.functions = set[str](), set[tuple[str, str]]()
        #: The files that call another one.
        self.callers = set[str]()
        self.crossings, self.depth = 0, 0
        self.upward = set[tuple[str, str]]()
        self._layer_of = layer_of

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event != "call" or not self.is_on or not file.startswith(LIBRARY) or frame.f_code.co_name == "<module>":
            return
        if not threading.current_thread().name.startswith(self._thread_prefix):
            return
        self.files.add(file)
        self.functions.add((file, frame.f_code.co_qualname if sys.version_info >= (3, 11) else frame.f_code.co_name))
        depth, caller = 1, frame.f_back
        while caller is not None and not is_caller(caller.f_code.co_filename):
            caller = caller.f_back
        if caller is not None and caller.f_code.co_filename != file:
            self.crossings += 1
            self.callers.add(caller.f_code.co_filename)
            source, target = (str(level.f_globals["__name__"]) for level in (caller, frame))
            if self._layer_of(target) > self._layer_of(source):
                self.upward.add((source, target))
        while caller is not None:
            depth += caller.f_code.co_filename.startswith(LIBRARY)
            caller = caller.f_back
        self.depth = max(self.depth, depth)


@contextmanager
def traced(layer_of: Callable[[str], int]) -> Any:
    """Trace the calls of all threads that start in the block."""
    trace = Trace(layer_of)
    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        yield trace
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def one_record(topic: distlog.Topic) -> None:
    with topic.writer(linger_ms=0) as writer:
        writer.append(b"x", partition=0)


def transaction(topic: distlog.Topic) -> None:
    with topic.producer("payments", linger_ms=0) as producer, producer.begin():
        producer.append(b"x", partition=0)


#: By name: the flow, and whether its topic is on an object store.
FLOWS: dict[str, tuple[Callable[[distlog.Topic], object], bool]] = {
    "append, local": (lambda topic: topic.append(ROWS), False),
    "append, object store": (lambda topic: topic.append(ROWS), True),
    "scan": (lambda topic: topic.scan().to_table(), False),
    "point read": (lambda topic: next(topic.records()), False),
    "open": (lambda topic: distlog.open(topic.storage.url), False),
    "writer, local": (one_record, False),
    "writer, object store": (one_record, True),
    "producer transaction": (transaction, False),
    "retention": (lambda topic: topic.retention(), False),
    "merge": (lambda topic: topic.compact(), False),
    "verify": (lambda topic: topic.verify(), False),
    "vacuum": (lambda topic: topic.vacuum(), False),
}

#: The flow of a request through a gateway.
PRODUCE = "Produce, local"


def produce_trace(layer_of: Callable[[str], int]) -> Trace:
    """Trace a Produce request of one batch in a gateway of this process."""
    trace = Trace(layer_of, "kafka-")
    trace.is_on = False
    with tempfile.TemporaryDirectory() as folder:
        topic = distlog.create(f"{folder}/clicks", partitions=2)
        topic.append(ROWS)
        part = {"index": 0, "records": bytes(topic.read(0, 0))}
        fields = {"acks": -1, "timeout": 30_000, "topic_data": [{"name": "clicks", "partition_data": [part]}]}
        schema, writer = request_schema(_PRODUCE, _PRODUCE_VERSION), ChunkWriter()
        message_writer(schema.body, schema.body.names())(writer, fields)
        # the head: API, version, correlation id, no client id, no tags
        head = struct.pack(">hhihx", _PRODUCE, _PRODUCE_VERSION, 1, -1)
        frame = head + writer.joined()
        # the threads of the gateway are traced from their start on
        threading.setprofile(trace)
        try:
            with GatewayServer(folder, port=0) as gateway, socket.socket() as client:
                client.connect(("127.0.0.1", gateway.port))
                for is_traced in (False, False, True):
                    trace.is_on = is_traced
                    client.sendall(struct.pack(">i", len(frame)) + frame)
                    client.recv(1 << 16)
                    # the network's thread ends the request after it has sent the response
                    time.sleep(_REST_S)
                trace.is_on = False
        finally:
            threading.setprofile(None)
    return trace


def flow_trace(name: str, layer_of: Callable[[str], int]) -> Trace:
    flow, is_remote = FLOWS[name]
    with tempfile.TemporaryDirectory() as folder:
        root = f"memory://{uuid.uuid4().hex}" if is_remote else folder
        topic = distlog.create(f"{root}/clicks", partitions=2)
        for _ in range(3):
            topic.append(ROWS)
        flow(topic)
        topic.append(ROWS)
        with traced(layer_of) as trace:
            flow(topic)
    return trace


def row(name: str, layer_of: Callable[[str], int]) -> list[str]:
    trace = produce_trace(layer_of) if name == PRODUCE else flow_trace(name, layer_of)
    leaves = len(trace.files - trace.callers)
    numbers = len(trace.files), leaves, len(trace.functions), trace.crossings, trace.depth, len(trace.upward)
    return [name, *(f"{number:,}" for number in numbers)]


def callables() -> str:
    """A sentence about the functions that the library passes down."""
    counts = {"`Callable`": 0, "`partial`": 0, "nested functions": 0, "lambdas": 0}
    for path in (ROOT / "distlog").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            counts["`Callable`"] += isinstance(node, ast.Name) and node.id == "Callable"
            counts["`partial`"] += isinstance(node, ast.Call) and getattr(node.func, "id", "") == "partial"
            counts["lambdas"] += isinstance(node, ast.Lambda)
            if isinstance(node, ast.FunctionDef):
                inner = (child for child in ast.walk(node) if child is not node)
                counts["nested functions"] += sum(isinstance(child, ast.FunctionDef) for child in inner)
    return ", ".join(f"{number:,} {name}" for name, number in counts.items())


def layers() -> Callable[[str], int]:
    sys.path.insert(0, str(ROOT / "tests" / "project"))
    import test_import_direction

    return test_import_direction.layer  # type: ignore[no-any-return]


def table() -> str:
    layer_of = layers()
    rows = [["flow", "files", "leaf files", "functions", "calls into another file", "depth", "calls up a layer"]]
    rows.append(["---"] * len(rows[0]))
    rows += [row(name, layer_of) for name in (*FLOWS, PRODUCE)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the table into CONTRIBUTING.md")
    arguments = parser.parse_args()
    text = f"{table()}\nPassed down in the library: {callables()}.\n"
    print(text)
    if arguments.write:
        page = PAGE.read_text(encoding="utf-8")
        start, end = page.index(START) + len(START), page.index(END)
        PAGE.write_text(page[:start] + text + page[end:], encoding="utf-8")


if __name__ == "__main__":
    main()

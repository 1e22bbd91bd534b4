"""Standard error, also under spark-submit, which sends what a Python program writes there to standard output."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from pyspark import SparkContext


@contextmanager
def errors_apart() -> Iterator[None]:
    """What is written to `sys.stderr` goes to standard error, also under spark-submit."""
    before = sys.stderr
    sys.stderr = _JvmErrors(before) if "PYSPARK_GATEWAY_PORT" in os.environ else before
    try:
        yield
    finally:
        sys.stderr = before


class _JvmErrors(io.TextIOBase):
    """The standard error of the JVM that spark-submit runs; `otherwise` takes what a JVM that has ended cannot."""

    def __init__(self, otherwise: TextIO) -> None:
        self._otherwise = otherwise

    def write(self, text: str) -> int:
        """Write the text."""
        try:
            SparkContext._ensure_initialized()
            jvm: Any = SparkContext._jvm
            jvm.java.lang.System.err.print(text)
        except Exception:  # each way in which a JVM can end raises another error
            self._otherwise.write(text)
        return len(text)

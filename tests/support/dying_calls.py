"""A process that dies at a system call, or meets another one there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def before_call(
    monkeypatch: pytest.MonkeyPatch, name: str, is_it: Callable[..., bool], work: Callable[[], object]
) -> None:
    """Do `work` once, right before the first call of this function of `os` that `is_it`."""
    real = getattr(os, name)

    def call(*arguments: Any, **options: Any) -> Any:
        if is_it(*arguments):
            monkeypatch.setattr(os, name, real)
            work()
        return real(*arguments, **options)

    monkeypatch.setattr(os, name, call)


class Died(BaseException):
    """The process dies here."""


class DyingCalls:
    """Lets `fail_at` calls of some functions of `os` pass, and dies at every later one."""

    def __init__(self, fail_at: int, patch: pytest.MonkeyPatch, names: Iterable[str]) -> None:
        self.count, self._fail_at = 0, fail_at
        for name in names:
            patch.setattr(os, name, self._dying(getattr(os, name)))

    def _dying(self, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count > self._fail_at:
                raise Died
            return real(*arguments, **options)

        return call

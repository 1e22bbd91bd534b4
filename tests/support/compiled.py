"""Parts of kernels as functions that a test can call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distlog.core.format.kernels.native import fill_kernel


def compiled(part: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that does nothing but call `part`, which Python cannot call."""

    def call(*arguments: Any) -> Any:
        return part(*arguments)

    return fill_kernel(call)

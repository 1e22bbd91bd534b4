"""The reference of the errors and warnings, by the public names of distlog."""

from __future__ import annotations

import distlog

_HEAD = """# Errors

Every error that distlog raises on purpose is a `DistlogError`. Its text says what is wrong, where, and what to do.
Its `details` hold the facts.

"""


def text() -> str:
    """The page: the base of all first, the others by name."""
    names = [name for name in distlog.__all__ if name.endswith(("Error", "Warning"))]
    names.sort(key=lambda name: (name != "DistlogError", name))
    return _HEAD + "\n\n".join(f"::: distlog.{name}" for name in names)

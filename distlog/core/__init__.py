"""The log itself: formats, indexes, commit log, segments, topics. Nothing here knows about Spark."""

from __future__ import annotations

import importlib
from typing import Any

VERSION = "0.1.0"
#: The name on package indexes, where `distlog` is another project.
DISTRIBUTION = "pydistlog"


def optional(module: str, user: str, install: str) -> Any:
    """Import the module; raises ModuleNotFoundError that names its `user` and the package to `install`."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != module.split(".")[0]:
            raise
        raise ModuleNotFoundError(f"{user} needs {error.name}: pip install {install}", name=error.name) from None


def extra(name: str) -> str:
    return f"'{DISTRIBUTION}[{name}]'"

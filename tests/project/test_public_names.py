"""What a program may use is what `distlog.__all__` says; each new name is a deliberate change there."""

from __future__ import annotations

from types import ModuleType

import distlog


def test_all_names_the_public_namespace_once() -> None:
    public = [
        name for name, value in vars(distlog).items() if name.strip("_") == name and not isinstance(value, ModuleType)
    ]
    assert sorted(distlog.__all__) == sorted([*public, "__version__"])

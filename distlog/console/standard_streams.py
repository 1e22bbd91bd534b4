"""Makes up for closed standard streams, as by `>&-`: for Python they are None, and their numbers are free."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Read nothing from a closed standard input, and drop what goes to a closed output.

    A file that is opened later cannot get the number 0, 1 or 2 then: what a library prints would go into it.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - for the rest of the process

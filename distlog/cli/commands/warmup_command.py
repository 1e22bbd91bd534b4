"""`distlog warmup`: compiles distlog's kernels at installation."""

from __future__ import annotations

from distlog.cli.options.shared_options import Json
from distlog.console.report import print_report
from distlog.core.warm_up import warm_up


def warmup(*, as_json: Json = False) -> None:
    """Compile distlog's kernels ahead of time.

    As when an image for containers is built. The code is kept beside the library if that can be written, in
    NUMBA_CACHE_DIR if that is set, else in the home.
    """
    print_report(warm_up(), as_json=as_json)

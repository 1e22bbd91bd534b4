"""What makes Spark find the format `distlog` without `register`: it looks for `DefaultSource` in modules named so.

One such module that fails to be imported hides those of all other packages, so this one never fails.
"""

import contextlib

with contextlib.suppress(Exception):
    from distlog.spark.data_source import DistlogDataSource as DefaultSource  # noqa: F401

"""The log itself: formats, indexes, commit log, segments, topics. Nothing here knows about Spark."""

VERSION = "0.1.0"
#: The name on package indexes, where `distlog` is another project.
DISTRIBUTION = "pydistlog"

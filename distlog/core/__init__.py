"""The log itself: formats, indexes, commit log, segments, topics. Nothing here knows about Spark."""

VERSION = "0.1.0"

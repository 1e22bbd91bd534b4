"""The log itself: formats, indexes, commit log, segments, topics. Nothing here knows about Spark."""

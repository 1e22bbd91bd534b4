"""Structured Streaming: topics as sources and as sinks of streaming queries."""

"""Structured Streaming: topics as sources of streams."""

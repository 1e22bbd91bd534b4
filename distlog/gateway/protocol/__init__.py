"""Requests and responses as bytes, and the codes of errors."""

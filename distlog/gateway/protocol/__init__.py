"""Requests and responses as bytes, and the codes of errors."""

from distlog.core.optional import extra, optional

optional("kio", "the gateway", extra("gateway"))

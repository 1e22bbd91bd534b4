"""Requests and responses as bytes, and the codes of errors."""

from distlog.core import extra, optional

optional("kio", "the gateway", extra("gateway"))

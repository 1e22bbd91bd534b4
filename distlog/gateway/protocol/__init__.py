"""Requests and responses as bytes, and the codes of errors."""

from distlog.core.optional import optional

optional("kio", "the gateway", "'distlog[gateway]'")

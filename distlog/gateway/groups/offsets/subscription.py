"""The topics in a consumer's subscription, as Kafka's ConsumerProtocolSubscription has them first in any version."""

from __future__ import annotations

import struct


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics; None where the bytes, which are the client's own business, are no such subscription."""
    topics, at = [], 6
    try:
        (count,) = struct.unpack_from(">i", subscription, 2)
        for _ in range(count):
            (size,) = struct.unpack_from(">h", subscription, at)
            name = subscription[at + 2 : at + 2 + size]
            if len(name) != size:
                return None
            topics.append(name.decode("utf-8"))
            at += 2 + size
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(topics)

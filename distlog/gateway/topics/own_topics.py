"""The topics that gateways keep for themselves, by Kafka's names."""

from __future__ import annotations

#: Groups and their positions, in Kafka's format.
OFFSETS_TOPIC = "__consumer_offsets"
#: The transactions of Kafka's producers, in Kafka's format.
TRANSACTIONS_TOPIC = "__transaction_state"

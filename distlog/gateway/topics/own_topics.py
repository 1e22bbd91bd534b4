"""The topics that gateways keep for themselves, by Kafka's names; groups are in `__consumer_offsets`."""

from __future__ import annotations

#: The transactions of Kafka's producers, in Kafka's format.
TRANSACTIONS_TOPIC = "__transaction_state"

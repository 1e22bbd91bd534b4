"""Producers and transactions: the state that brokers keep of them, and the records that a reader may see (KIP-98)."""

"""Producers and transactions: the state that brokers keep of them, and what a reader may see (KIP-98)."""

"""Producers and transactions: what brokers keep of them, and what a reader may see (KIP-98)."""

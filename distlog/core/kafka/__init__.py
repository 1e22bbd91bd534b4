"""Kafka's side: import and export of its files, dumps, and the transactions of its clients."""

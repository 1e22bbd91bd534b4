"""Transactions of Kafka's clients: who their producers are, which partitions they wrote to, and how they end."""

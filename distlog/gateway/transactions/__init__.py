"""Transactions of Kafka's clients: their producers, their partitions, and their ends."""

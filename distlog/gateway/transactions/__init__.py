"""Transactions of Kafka clients: their producers, their partitions, and their ends."""

"""Kafka's log directories, both ways: what a stopped broker left becomes a topic, and a topic becomes one of them."""

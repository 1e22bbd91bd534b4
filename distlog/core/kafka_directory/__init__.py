"""Kafka's log directories, both ways: a stopped broker's becomes a topic, and a topic becomes one."""

"""Kafka's LogManager: all topics below some roots, and the tasks that maintain them."""

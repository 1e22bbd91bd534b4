"""Kafka's protocol in front of distlog's topics."""

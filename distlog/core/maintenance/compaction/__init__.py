"""Compaction: keeps the last record of each key, at its offset (Kafka's `LogCleaner`)."""

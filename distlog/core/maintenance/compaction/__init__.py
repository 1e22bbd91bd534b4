"""Compaction: of each key the last record stays, at its offset (Kafka's `LogCleaner`)."""

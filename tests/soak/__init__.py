"""Long crash campaigns against partitions that are appended to in place: `make soak MINUTES=10`."""

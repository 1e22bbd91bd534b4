"""Long crash campaigns against partitions with active segments: `make soak MINUTES=10`."""

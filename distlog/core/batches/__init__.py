"""Record batches: Kafka's bytes to Arrow and back."""

"""Topics that Kafka's tiered storage (KIP-405) left in a bucket, as Aiven's plugin lays them out; read-only."""

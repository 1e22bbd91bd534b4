"""Kafka's bytes and Arrow: record batches, codecs, indexes, and kernels that loop over bytes."""

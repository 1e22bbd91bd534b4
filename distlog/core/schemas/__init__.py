"""Schemas of values: registries, Avro, Protobuf."""

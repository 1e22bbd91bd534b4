"""Kafka clients in five languages, as programs against the gateway and a broker: `make peers`."""

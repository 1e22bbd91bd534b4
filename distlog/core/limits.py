"""The bounds of Kafka's integers."""

MAX_INT = 2**31 - 1
MAX_LONG = 2**63 - 1
MIN_LONG = -(2**63)

"""What exists because Kafka does: import and export of its files, dumps, and its clients' transactions."""

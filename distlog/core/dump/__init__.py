"""The content of a Kafka partition's files, for people: batches, records, index entries, producers, leader epochs."""

"""What is in a Kafka partition's files, for people: batches, records, index entries, producers, leader epochs."""

"""Consumer groups of Kafka clients: members, generations, assignments and committed offsets."""

"""Consumer groups of Kafka clients: members, generations, assignments, and how far each group has come."""

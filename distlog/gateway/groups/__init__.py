"""Consumer groups of Kafka's clients: members, generations, assignments, and how far each group has come."""

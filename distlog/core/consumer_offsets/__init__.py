"""The topic `__consumer_offsets` of a root, in which gateways keep the groups of Kafka's clients."""

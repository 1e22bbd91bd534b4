"""What runs until a signal ends it: the LogManager and the gateway."""

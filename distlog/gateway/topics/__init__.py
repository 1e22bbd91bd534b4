"""The topics of the root as the gateway serves them, partition by partition."""

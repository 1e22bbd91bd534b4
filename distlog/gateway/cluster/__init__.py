"""The gateways that share a root: who lives, where clients find them, and who answers for what."""

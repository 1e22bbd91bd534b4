"""The commit log: what a topic is at each version, and the only way to change it."""

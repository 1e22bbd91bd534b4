"""The commit log: a topic's state at each version, and the only way to change it."""

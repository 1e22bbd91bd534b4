"""Following a topic: records as they come, for one process or for the members of a group."""

"""What a topic is at a version: the snapshot, and how commits change it."""

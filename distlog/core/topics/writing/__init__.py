"""Appends record by record: buffers, and where they go."""

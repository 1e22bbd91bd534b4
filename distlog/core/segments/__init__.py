"""The readers of segments, their state after each batch, and their writers."""

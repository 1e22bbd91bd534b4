"""Segments: their readers, their state after each batch, and their writers, for commits to move to their offsets."""

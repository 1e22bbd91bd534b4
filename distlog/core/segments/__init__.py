"""Segments: what a log says of itself, folded batch by batch, and the writer of relocatable ones."""

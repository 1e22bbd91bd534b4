"""Segments: the state of a log, folded batch by batch, and the writer of relocatable ones."""

"""Segments: written relocatable, planned from metadata, read in chunks."""

"""Segments: written relocatable, described by their logs, rolled by size and time."""

"""Vacuum: which files nobody needs any more, each kind by itself, and their deletion."""

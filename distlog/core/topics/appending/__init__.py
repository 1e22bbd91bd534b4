"""Appends of whole tables: their columns, their partitions, and their commit."""

"""Fetches that wait for records, and the memory of those that are answered."""

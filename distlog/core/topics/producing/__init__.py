"""Producers: writers that double nothing, and whose transactions are all or nothing."""

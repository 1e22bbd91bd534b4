"""Merging: small segments become large ones, and small batches larger ones."""

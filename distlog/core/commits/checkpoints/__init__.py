"""Checkpoints: the whole state at one version as a Parquet file, read in bounded memory."""

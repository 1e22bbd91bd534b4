"""Index files: how offset, time and transaction indexes are written, cached and searched."""

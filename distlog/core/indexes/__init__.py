"""Index files: how offset, time and transaction indexes are made, cached and searched."""

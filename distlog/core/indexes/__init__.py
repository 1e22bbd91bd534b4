"""Index files: offset, time and transaction index, how they are made, kept and searched."""

"""What a partition's log knows of its idempotent producers."""

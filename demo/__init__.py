"""What a newcomer sees first: `make demo`."""

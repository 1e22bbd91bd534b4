"""What the programs of `jobs/` do: their arguments, one call, a summary, an exit status."""

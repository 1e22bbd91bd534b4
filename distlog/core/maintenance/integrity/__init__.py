"""Whether what is stored is what was written: verify, and indexes made again from their logs."""

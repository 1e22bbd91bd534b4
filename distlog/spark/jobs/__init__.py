"""The work of the programs in `jobs/`: they parse arguments, make one call, print a summary, set an exit status."""

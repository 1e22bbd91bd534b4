"""The work of the programs in `distlog.jobs`: parse, make one call, print a summary, set an exit status."""

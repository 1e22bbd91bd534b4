"""A local (or network-mounted) disk: files that survive a power cut once a call returns."""

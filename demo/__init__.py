"""The demo for newcomers: `make demo`."""

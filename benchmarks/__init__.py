"""Benchmarks, each with a peer in the same run; `make bench`, or `python -m benchmarks index codec`."""

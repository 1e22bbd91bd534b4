"""What is measured, always beside a peer in the same run; `make bench`, or `python -m benchmarks index codec`."""

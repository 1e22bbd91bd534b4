"""One segment on a local disk that is appended to in place: its files, its reads, its recovery."""

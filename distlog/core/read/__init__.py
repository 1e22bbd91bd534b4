"""From a snapshot to Arrow: scans, fetches, lookups by offset and time, consumers and their groups."""

"""Reading: from a snapshot and a range to slices of segments, and from slices to Arrow."""

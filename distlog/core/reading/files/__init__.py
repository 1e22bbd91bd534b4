"""The files of segments, open for readers, and where in them a position is."""

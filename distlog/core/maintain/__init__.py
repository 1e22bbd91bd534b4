"""Retention, compaction, merging, rebuild, verify, restore and vacuum, and the executors that run them."""

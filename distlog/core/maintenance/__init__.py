"""Maintenance of a topic: retention, compaction, index rebuild, verify, vacuum.

Each one first plans over a snapshot, as a pure function. Then it works on files that no commit references. Then one
commit checks the plan against the newest snapshot.
"""

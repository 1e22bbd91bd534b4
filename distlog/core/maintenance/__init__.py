"""What keeps a topic in shape: retention, compaction, index rebuild, verify, vacuum.

Each is a pure plan over a snapshot, then work on unreferenced files, then one commit that checks the plan
against the newest snapshot.
"""

"""One partition's log in place: the lock, the appends, the flushes and the rolls."""

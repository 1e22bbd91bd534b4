"""Groups of followers: who reads which partitions, and how far the group has come."""

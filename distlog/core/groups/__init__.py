"""Groups of followers: their members' partitions, and their positions."""

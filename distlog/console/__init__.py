"""What the command line and the jobs share: arguments, progress, and output."""

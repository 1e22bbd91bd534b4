"""Code that the command line and the jobs share: arguments, progress, output, reports and the exit status."""

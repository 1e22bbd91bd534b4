"""Code that the command line and the Spark jobs share: arguments, output and the exit status."""

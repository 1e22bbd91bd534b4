"""Work of distlog as Spark tasks: what they are given, run, and hand to each other."""

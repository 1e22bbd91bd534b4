"""Runs work of distlog as Spark tasks: their inputs, their code, and the data they pass to each other."""

"""The arguments and options of commands that have many."""

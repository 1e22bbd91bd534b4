"""`python -m distlog`: runs the `distlog` command if its script is not on the path."""

from distlog.cli import load_to_stay

load_to_stay()()

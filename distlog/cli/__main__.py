"""`python -m distlog.cli`: the command where its script is not on the path."""

from distlog.cli import main

main()

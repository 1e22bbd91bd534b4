"""`python -m distlog.cli`: runs the `distlog` command if its script is not on the path."""

from distlog_command import main

main()

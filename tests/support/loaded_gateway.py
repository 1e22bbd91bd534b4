"""Imported by the process that forks programs: what a gateway loads as it begins, a second of CPU for each."""

from distlog.gateway.gateway_server import warm_up

warm_up()

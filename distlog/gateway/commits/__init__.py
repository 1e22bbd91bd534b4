"""Appends on object stores: gathered from all connections, and committed together."""

"""The stories of the clients for Python, each a program of its own."""

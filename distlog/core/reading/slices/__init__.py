"""Which bytes of which segments a read needs."""

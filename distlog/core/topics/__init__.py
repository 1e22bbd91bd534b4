"""Topics: what users hold; appends, transactions and writers."""

"""Topics, which users hold; appends, transactions and writers."""

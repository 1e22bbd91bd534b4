"""How things are shown to people: tables, units and progress, in a notebook and as text."""

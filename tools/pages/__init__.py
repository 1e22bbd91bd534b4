"""Makes what the documentation site shows and nobody writes by hand: reference pages, tables, charts, diagrams."""

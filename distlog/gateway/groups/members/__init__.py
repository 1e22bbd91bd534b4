"""The members of groups: who joins, who leads, and what each is assigned."""

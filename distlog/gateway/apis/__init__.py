"""What each API does, a module each: a function from a request to the fields of its response."""

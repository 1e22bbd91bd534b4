"""Who may connect: TLS, and SASL with the users of a file."""

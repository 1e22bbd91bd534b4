"""The authentication of clients: TLS, and SASL with the users of a file."""

"""What all gateways of a root share, as records of its topics: users, ACLs, quotas, settings."""

"""The records that all gateways of a root share in its topics: users, ACLs, quotas, settings."""

"""What commits and manifests hold: actions, as JSON and as columns, each checked when it is read."""

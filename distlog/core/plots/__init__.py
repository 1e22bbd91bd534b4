"""Pictures of a topic and of a scan, from their metadata; matplotlib is imported when one is drawn."""

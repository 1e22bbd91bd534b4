"""The log engine of local disks: segments that are appended to in place (Kafka's `storage.internals.log`)."""

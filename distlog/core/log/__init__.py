"""The log engine of local disks, with active segments (Kafka's `storage.internals.log`)."""

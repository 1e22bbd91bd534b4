"""The bytes of batches on their way to a reader: read ahead, checked and decoded, or sent as they are."""

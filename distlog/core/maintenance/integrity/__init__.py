"""Integrity: verify checks that the stored data is what was written; rebuild makes indexes again from their logs."""

"""Reading topics with Spark: options become splits, splits become Arrow batches."""

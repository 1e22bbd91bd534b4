"""From rows to the log: appends, writers, producers, and the engines that append batches."""

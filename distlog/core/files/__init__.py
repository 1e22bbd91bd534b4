"""Input files as ordered splits, and as Arrow tables of records: one reader for the command and the Spark job."""

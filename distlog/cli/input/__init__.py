"""What `distlog append` takes: lines, CSV and Parquet, from files and streams."""

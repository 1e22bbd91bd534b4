"""S3 and other object stores, through fsspec."""

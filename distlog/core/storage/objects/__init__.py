"""S3 and its like, through fsspec: each verb is one request where the store has one for it."""

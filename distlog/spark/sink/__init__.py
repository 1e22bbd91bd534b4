"""Writing DataFrames into topics: tasks write segments, the driver commits them."""

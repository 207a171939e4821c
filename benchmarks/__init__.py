"""Scripts that measure the tables of docs/results."""

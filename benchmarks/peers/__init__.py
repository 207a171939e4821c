"""Peers of sscc in benchmarks: their installation, and a runner for each in its own Python environment."""

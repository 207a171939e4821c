"""The others that sscc is measured against: how each is installed, and a runner for each, in its own Python."""

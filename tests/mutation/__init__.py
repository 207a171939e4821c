"""Mutation testing: small faults in the code that the tests should notice: ``python -m tests.mutation``."""

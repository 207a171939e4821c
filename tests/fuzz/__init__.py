"""Fuzzing: seeded cases of what comes from outside, a few in the suite, any number by ``python -m tests.fuzz``."""

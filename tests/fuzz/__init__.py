"""Fuzzing: seeded cases of external inputs, a few of them in the suite, any number by ``python -m tests.fuzz``."""

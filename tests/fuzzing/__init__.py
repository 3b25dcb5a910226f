"""Fuzzing by coverage: inputs that reach new code are kept and changed further. `python -m tests.fuzzing` runs it."""

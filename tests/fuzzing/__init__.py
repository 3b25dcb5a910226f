"""Fuzzing by coverage of all parsers of foreign bytes: inputs that reach new code are kept and changed further.

A target (`targets.py`) is a parser and the property that holds for every input. `python -m tests.fuzzing` runs one;
`corpora` has the smallest inputs that reached each part of a parser, which `make test` runs again.
"""

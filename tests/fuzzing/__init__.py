"""Fuzzing of all parsers of foreign bytes, guided by coverage.

A target (`targets.py`) is a parser and the property that holds for each input. `python -m tests.fuzzing` runs one; the
fuzzer keeps inputs that reach new code, and mutates them further. `corpora` has the smallest inputs that reached each
part of a parser, which `make test` runs again.
"""

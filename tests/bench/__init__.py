"""Benchmarks: `make bench`. The report compares each figure with the bare client of the same run."""

"""Benchmarks: `make bench`. Each figure stands beside the bare client's of the same run, as a ratio."""

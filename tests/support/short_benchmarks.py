"""The short form of a benchmark, which executes each of its lines, and which benchmarks need Spark."""

from __future__ import annotations

import gc

from tests.bench.__main__ import measured
from tests.bench.harness import SHORT

WITH_SPARK = ("lake-memory", "cold-first")
LONG_WITH_SPARK = (
    *("lake-fill", "lake-soon", "compaction", "search-as-of", "search-as-of-all"),
    *("lake-scale", "lake-random", "lake-large", "lake-long-ids"),
)
"""Their short form still takes half a minute or more: Spark starts, or batches follow each other."""


def assert_measured(name: str) -> None:
    """Check that the benchmark returns rows, each with a figure."""
    is_frozen = gc.get_freeze_count() > 0
    figures = list(measured(name, SHORT))
    assert (gc.get_freeze_count() > 0) is is_frozen, "later tests would look for garbage among all collected tests"
    assert figures
    for figure in figures:
        assert any(map(str.isdigit, figure.measured)), figure
        assert "nan" not in figure.measured, figure

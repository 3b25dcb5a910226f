"""Paths of the project's files."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
VECTORS = TESTS / "vectors"

_SHARED_MEMORY = Path("/dev/shm")
MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
"""A folder in memory; None if the system has none."""

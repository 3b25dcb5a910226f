"""Starts a forked program in the folder of the variable PWD; see `ForkedService`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def install(arguments: Sequence[str]) -> None:
    """Change to the folder."""
    os.chdir(os.environ["PWD"])

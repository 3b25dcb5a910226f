"""Has a forked program start in the folder that the variable PWD names; see `ForkedService`."""

from __future__ import annotations

import os
from collections.abc import Sequence


def install(arguments: Sequence[str]) -> None:
    """Change to the folder."""
    os.chdir(os.environ["PWD"])

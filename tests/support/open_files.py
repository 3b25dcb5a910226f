"""The files that this process has open."""

from __future__ import annotations

import os
from contextlib import suppress


def open_files() -> list[str]:
    """Return a path for each open descriptor, with ` (deleted)` after that of a deleted file."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it in the meantime
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found

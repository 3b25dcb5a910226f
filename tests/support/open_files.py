"""The files that this process has open."""

from __future__ import annotations

import os
from contextlib import suppress


def open_files() -> list[str]:
    """A path for each open descriptor; ` (deleted)` follows it where the file has no name any more."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # another thread has closed it since it was listed
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return found

"""Small files that are replaced atomically, and waiting for the disk.

The new content is written beside the old file and renamed.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_EVERYBODY = 0o666
"""As the process's mask allows."""


def write_atomically(path: Path, content: bytes, *, mode: int = _EVERYBODY, is_durable: bool = False) -> None:
    """Replace the content of a file; `mode` are its permissions. Raises OSError; then the old one is kept.

    `is_durable`: return when it is on the disk. No other process may write the same file at the same time.
    """
    part = path.with_suffix(".part")
    with contextlib.ExitStack() as undo:
        undo.callback(part.unlink, missing_ok=True)
        # A leftover draft may have more permissions.
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            if is_durable:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    if is_durable:
        sync_path(path.parent)


def size_of(path: Path) -> int | None:
    """Return the size of a file; None if it does not exist. Raises OSError."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def identity_of(path: str | Path) -> tuple[int, int]:
    """Return what a file is recognized by at another time: device and number. Raises OSError."""
    status = os.stat(path)
    return status.st_dev, status.st_ino


def is_elsewhere(path: str | Path, identity: tuple[int, int]) -> bool:
    """Whether the path leads to another file, or to none; False if the path cannot be examined."""
    try:
        return identity_of(path) != identity
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def sync_path(path: Path) -> None:
    """Return when a file, or the entries of a folder, are on the disk. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""The data folder belongs to one service at a time.

Two services on one journal would decide against each other's unseen states, so whoever opens the folder first holds an
advisory lock on the file `lock` in it for as long as its process lives. The kernel lets go of the lock when the process
ends, however it ends: there is no stale lock to remove by hand. What the file says is for people only.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from connectivity.errors import ConnectivityError, SettingsError


class DataFolderLocked(ConnectivityError):
    """Another service works on the data folder; this one ends with `exit_code`."""

    exit_code: ClassVar[int] = 3

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(
            f"{path}: found a lock held by {owner or 'another process'}, expected none; "
            "stop that service or choose another data_dir"
        )
        self.path, self.owner = path, owner


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[Path]:
    """Hold the lock of `folder`, which is made, for its owner alone, if it is missing; yields the lock file.

    Raises DataFolderLocked if somebody else holds it, SettingsError if the folder cannot be made or written.
    """
    path = folder / "lock"
    try:
        # What every twin has ever said lies in it. Who wants others to read it makes the folder, or opens it to them.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"data_dir {folder}: expected a folder that can be written, found: {error}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            raise DataFolderLocked(path, file.read(80).strip()) from error
        except OSError as error:
            raise SettingsError(f"data_dir {folder}: expected a folder that can be locked, found: {error}") from error
        file.truncate(0)
        file.write(f"process {os.getpid()}\n")
        file.flush()
        yield path

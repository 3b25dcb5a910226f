"""A lock that gives the data folder to one service at a time.

Two services on one journal would not see each other's undurable states. The first one holds an advisory lock on the file
`lock` for as long as its process lives. The kernel releases it when the process ends, so there is no stale lock to remove.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from connectivity.errors import ConnectivityError, SettingsError
from spark_store.journal.journal import Journal


class DataFolderLocked(ConnectivityError):
    """Another service uses the data folder; the process ends with `exit_code`."""

    exit_code: ClassVar[int] = 3

    def __init__(self, path: Path, owner: str) -> None:
        super().__init__(
            f"{path}: found a lock held by {owner or 'another process'}, expected none; "
            "stop that service or choose another data_dir"
        )
        self.path, self.owner = path, owner


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[Path]:
    """Hold the lock of `folder`, which is created with mode 0700 if it is missing; yields the lock file.

    Raises DataFolderLocked if another process holds it, SettingsError if the folder cannot be created or written.
    """
    path = folder / "lock"
    try:
        # The folder contains the history of every twin: others can read it only if the operator allows it.
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
        # The lock holds without this text, which a full disk does not take.
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), f"process {os.getpid()}\n".encode())
        yield path


@contextlib.contextmanager
def open_journal(data_dir: Path) -> Iterator[Journal]:
    """Open the journal of a folder without a service, under its lock.

    Raises what `lock_folder` raises, SchemaTooNew, StoreUnavailable.
    """
    with lock_folder(data_dir), contextlib.closing(Journal.open(data_dir / "journal.db")) as journal:
        yield journal

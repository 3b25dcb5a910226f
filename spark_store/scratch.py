"""Where Spark puts aside what it cannot keep in memory: a folder of the lake's, in which each process has one of its own.

Parts of a shuffle and rows that were spilled lie there, so values of events too, and libraries that Java has unpacked. A
process takes its folder away at its end. One that is killed cannot, so whoever writes the lake next takes away what nobody
uses any more. Who uses a folder holds its lock: process ids would not do, since containers give them again.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from spark_store.tables import Lake

_LOCK = "lock"
"""In each folder, held by its process; and in the one around them, by whoever makes one or looks which are used."""


@contextlib.contextmanager
def own_folder(lake: Lake) -> Iterator[Path]:
    """A new folder, absolute, which is there until the end. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as held:
        with _alone(lake):
            folder = Path(tempfile.mkdtemp(dir=lake.scratch.absolute()))
            held.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = held.enter_context((folder / _LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


def sweep(lake: Lake) -> None:
    """Take the folders away that no process uses any more. Raises OSError."""
    lake.scratch.mkdir(parents=True, exist_ok=True)
    with _alone(lake):
        for folder in lake.scratch.iterdir():
            if folder.is_dir() and not _is_used(folder):
                # What cannot be removed now is there the next time.
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _alone(lake: Lake) -> Iterator[None]:
    with (lake.scratch / _LOCK).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _is_used(folder: Path) -> bool:
    try:
        with (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        # Whoever made it, or took it away, was killed meanwhile.
        return False
    except BlockingIOError:
        return True
    return False

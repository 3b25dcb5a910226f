"""What ended the pipeline last, in one small file beside the watermark, for whoever asks how it does.

Written when the process ends with an error, removed when the next one has found its place in the lake. Only for people: a
file that cannot be written, because the disk is full or the folder is gone, is no further trouble.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from spark_store.whole import write_whole


class Failure(msgspec.Struct, frozen=True):
    """When the pipeline ended (UTC text as in events), with which exit code, and why."""

    at: str
    exit_code: int
    reason: str


def note_failure(path: Path, failure: Failure) -> None:
    """Remember `failure`, if its folder is there."""
    with contextlib.suppress(OSError):
        write_whole(path, msgspec.json.encode(failure))


def read_failure(path: Path) -> Failure | None:
    """The failure that nobody has overcome yet; None where there is none, or where it cannot be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, msgspec.MsgspecError):
        return None


def forget_failure(path: Path) -> None:
    """The pipeline works again."""
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)

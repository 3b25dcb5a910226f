"""Watches a folder of connection files, and reads files that have changed.

A file is read when it has stayed the same for a moment, so that it is complete; one that keeps changing is read after some
rounds. A missing file is removed when it is still missing a moment later. After a folder has vanished and come back, missing
files are unreadable and not removed for a while. Files of secrets are watched like the documents that reference them. All of
it waits for the disk: call it in a worker thread, one caller at a time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from connectivity.config.documents import SUFFIXES
from connectivity.config.problems import ROOT
from connectivity.connections.secret_references import UNLIMITED, ReferenceRules
from connectivity.errors import ConnectivityError, Problem
from connectivity.management.files import FileProblem, LoadedFolder, ReadFile, join_files, read_file, stamp, stamp_of

STEADY_SECONDS: Final = 0.1
"""How long a file must stay the same before it is read."""

MOST_ROUNDS: Final = 4
"""After how many rounds a file that keeps changing is read."""

RETURN_SECONDS: Final = 10.0
"""How long a folder that has come back may be incomplete."""


class FolderUnavailable(ConnectivityError):
    """The folder cannot be read."""


class _Known(NamedTuple):
    """A file as it was read, and its stamp from before that."""

    stamp: object
    content: ReadFile


class FolderWatcher:
    """One folder. Files directly in it are read, except those whose name begins with a dot."""

    def __init__(
        self,
        folder: Path,
        references: ReferenceRules = UNLIMITED,
        *,
        is_optional: bool = False,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`references` say what the documents may name; `clock` gives monotonic seconds.

        `is_optional`: an absent folder is an empty one, until it has had files.
        """
        self._folder = folder
        self._is_optional = is_optional
        self._references = references
        self._clock = clock
        self._pause = pause
        self._known: dict[str, _Known] = {}
        self._restless: dict[str, int] = {}
        """Files that did not stay the same, and for how many rounds."""
        self._has_looked = False
        self._folder_identity: object = None
        """The identity of the folder in the file system; None if it was missing."""
        self._missing_until = 0.0
        self._missing: set[str] = set()
        """Files that a folder that has come back does not have yet."""

    def look(self, *, reload: bool = False) -> LoadedFolder | None:
        """Return the content of the files; None if unchanged and `reload` is false. Raises FolderUnavailable."""
        found = self._stamps()
        changed = list(self._changed_files(found))
        gone = [name for name in self._known if name not in found]
        if self._has_looked and (changed or gone):
            self._pause(STEADY_SECONDS)
            before, found = found, self._stamps()
            changed = [name for name in changed if name in found and self._may_be_read(name, before[name], found[name])]
            gone = [name for name in gone if name not in found]
        missing: set[str] = set()
        if self._clock() < self._missing_until:
            missing, gone = set(gone), []
        for name in gone:
            del self._known[name]
        for name in changed:
            self._known[name] = _Known(found[name], read_file(self._folder / name, references=self._references))
        has_changed = bool(changed or gone or missing != self._missing)
        if self._has_looked and not (has_changed or reload):
            return None
        self._missing, self._has_looked = missing, True
        # In the order of their names, as they are listed elsewhere.
        loaded = join_files({self._folder / name: self._known[name].content for name in sorted(self._known)})
        # Files just read that have not stayed the same may be incomplete.
        restless = [name for name in changed if name in self._restless]
        problems = {**dict.fromkeys(missing, _MISSING), **dict.fromkeys(restless, _RESTLESS)}
        more = [FileProblem(self._folder / name, problem) for name, problem in sorted(problems.items())]
        return replace(loaded, problems=loaded.problems + more)

    def _changed_files(self, found: Mapping[str, object]) -> Iterator[str]:
        """Yield the files to read."""
        stamp_now = cache(stamp)
        for name, now in found.items():
            known = self._known.get(name)
            if (
                known is None
                or known.stamp != now
                or name in self._restless
                or any(stamp_now(file) != was for file, was in known.content.secrets.items())
            ):
                yield name

    def _may_be_read(self, name: str, before: object, now: object) -> bool:
        """Whether a file has stayed the same, or has been waited for long enough."""
        if before == now:
            self._restless.pop(name, None)
            return True
        self._restless[name] = rounds = self._restless.get(name, 0) + 1
        return rounds % (MOST_ROUNDS + 1) == 0

    def _stamps(self) -> dict[str, object]:
        """Return each file's stamp; of several names for one file the first. Raises FolderUnavailable."""
        try:
            status = self._folder.stat()
            identity = status.st_dev, status.st_ino
            with os.scandir(self._folder) as entries:
                files = sorted((it for it in entries if _is_connection_file(it.name)), key=lambda it: it.name)
        except OSError as error:
            self._folder_identity = None
            if self._is_optional and isinstance(error, FileNotFoundError) and not self._known:
                return {}
            raise FolderUnavailable(f"{self._folder}: {error.strerror}") from error
        if identity != self._folder_identity:
            # The first reading takes what there is; later the folder may still be filled again.
            self._missing_until = self._clock() + RETURN_SECONDS if self._has_looked else 0.0
            self._folder_identity = identity
        found = {entry.name: _stamp(entry) for entry in files if not entry.is_symlink()}
        if links := [entry for entry in files if entry.is_symlink()]:
            own = os.path.realpath(self._folder)
            seen = {os.path.join(own, name) for name in found}
            for entry in links:
                if (real := os.path.realpath(entry.path)) not in seen:
                    seen.add(real)
                    found[entry.name] = _stamp(entry)
        return found


_MISSING = Problem(
    ROOT,
    "no such file, although its folder exists again",
    "the file; without it, the service will close its connections",
)
_RESTLESS = Problem(
    ROOT,
    "a file that keeps changing",
    "a file that stays unchanged; until then, the service closes no connection",
)


def _is_connection_file(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")


def _stamp(entry: os.DirEntry[str]) -> object:
    try:
        return stamp_of(entry.stat())
    except OSError as error:
        return str(error)

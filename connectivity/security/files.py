"""Reads files whose paths are chosen by others, without following links."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

Identity: TypeAlias = tuple[int, int]
"""Device and inode of a file or folder. Names for the same file may differ in case or be hard links."""

_FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | getattr(os, "O_PATH", 0)
# A pipe must not wait for its writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


OWN_FILE = "a file that belongs to the service"
"""Why a forbidden file is not read."""


class UnreadableFile(ValueError):
    """The file cannot be read, or must not be. The text says why, and nothing of the content."""


class ForbiddenPlaces:
    """Files and folders that must not be read: neither they nor what is in them, nor hard links to that.

    An object lists the files in them at most once: a data folder may have very many.
    """

    def __init__(self, paths: Iterable[Path] = ()) -> None:
        self._paths = tuple(paths)

    def contain(self, passed: set[Identity], has_other_names: bool) -> bool:
        """Whether one of these files and folders is forbidden. Raises OSError."""
        return not (passed.isdisjoint(self._places) and (not has_other_names or passed.isdisjoint(self._files)))

    @cached_property
    def _places(self) -> frozenset[Identity]:
        return frozenset(_places(self._paths))

    @cached_property
    def _files(self) -> frozenset[Identity]:
        return frozenset(_files(self._paths))


NOTHING_FORBIDDEN = ForbiddenPlaces()


def read_regular_file(path: Path, *, most: int, forbidden: ForbiddenPlaces = NOTHING_FORBIDDEN) -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises UnreadableFile.

    `path` is absolute and has no links: a folder that became a link after the path was checked is not followed.
    """
    try:
        opened, passed = _open(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UnreadableFile("a path without a regular file") from None
    except OSError as error:
        raise UnreadableFile(f"a file that cannot be read: {error.strerror}") from None
    with open(opened, "rb") as file:
        try:
            is_forbidden = forbidden.contain(passed, os.fstat(opened).st_nlink > 1)
        except OSError as error:
            # It may be one of them.
            raise UnreadableFile(f"a file that cannot be told from those of the service: {error.strerror}") from None
        if is_forbidden:
            raise UnreadableFile(OWN_FILE)
        content = file.read(most + 1)
    if len(content) > most:
        raise UnreadableFile(f"a file of more than {most} bytes")
    return content


def _open(path: Path) -> tuple[int, set[Identity]]:
    """Open a regular file, and return it with the identities of it and of the folders that it is in."""
    root, *parts = path.parts
    held = os.open(root, _FOLDER)
    try:
        passed = {_identity(os.fstat(held))}
        for number, part in enumerate(parts, 1):
            inner = os.open(part, _FILE if number == len(parts) else _FOLDER, dir_fd=held)
            held, outer = inner, held
            os.close(outer)
            passed.add(_identity(os.fstat(held)))
        if not stat.S_ISREG(os.fstat(held).st_mode):
            raise FileNotFoundError(errno.ENOENT, "the path is not a regular file")
    except BaseException:
        os.close(held)
        raise
    return held, passed


def _places(paths: Iterable[Path]) -> Iterator[Identity]:
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            yield _identity(path.stat())


def _files(paths: Iterable[Path]) -> Iterator[Identity]:
    for path in paths:
        for folder, _, names in os.walk(path, onerror=_raise_unless_absent):
            for name in names:
                with suppress(FileNotFoundError, NotADirectoryError):
                    yield _identity(os.lstat(os.path.join(folder, name)))


def _raise_unless_absent(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino

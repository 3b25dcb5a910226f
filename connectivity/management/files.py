"""Connection files: `.json`, `.yaml` and `.yml`, each with one connection or a list.

A missing `id` is the file's name without suffix. A repeated `id` is a problem in both places, and neither is loaded.
Problems with one file or connection do not affect others. Files directly in the folder are read, except those whose name
begins with a dot.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from connectivity.config.documents import SUFFIXES, read_document
from connectivity.config.problems import ROOT, show
from connectivity.connections.model import Connection
from connectivity.connections.secret_references import UNLIMITED, ReferenceRules, is_missing_here, referenced_files
from connectivity.errors import DefinitionError, Problem
from connectivity.security.uri import MASK
from connectivity.validation.validator import parse

EXPECTED = "a connection or a list of connections"


class FileProblem(NamedTuple):
    """A problem and the file that it is in."""

    file: Path
    problem: Problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, slots=True)
class LoadedFolder:
    """The usable connections by ID, the document and file of each, and the problems of the rest.

    `read` is the number of files. The owner of a running connection whose file is among `broken_files` did not necessarily
    delete it.
    """

    connections: dict[str, Connection] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    files: dict[str, Path] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)
    read: int = 0

    @property
    def broken_files(self) -> frozenset[Path]:
        return frozenset(problem.file for problem in self.problems)


class FileEntry(NamedTuple):
    """One connection document of a file, and its connection: None if it has problems.

    `path` is its place in the file; the `id` of the document may be anything.
    """

    file: Path
    path: str
    document: dict[str, Any]
    connection: Connection | None
    problems: Sequence[FileProblem]


class ReadFile(NamedTuple):
    """The content of one file. `problems` are those of the file as a whole."""

    entries: Sequence[FileEntry]
    problems: Sequence[FileProblem]
    secrets: Mapping[Path, object]
    """Files that its connections refer to, each with its `stamp` from before it was read."""


def stamp(file: Path) -> object:
    """Return the identity of a file's content and permissions, or why it cannot be read."""
    try:
        return stamp_of(file.stat())
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)


def stamp_of(status: os.stat_result) -> object:
    """Return a value that changes whenever the content or the permissions of a file do."""
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def load(paths: Iterable[Path], *, for_remote_service: bool = False) -> LoadedFolder:
    """The connections of files and folders together, so that an `id` in two of them is seen. Never raises.

    `for_remote_service`: a reference to a secret is followed by a service on another machine, and `*****` is the secret that
    has. Neither needs a value here: their documents are there then, and no connections.
    """
    problems: list[FileProblem] = []
    files = list(_files(paths, problems))
    loaded = join_files({file: read_file(file, for_remote_service=for_remote_service) for file in files})
    return replace(loaded, problems=problems + loaded.problems)


def read_file(file: Path, *, for_remote_service: bool = False, references: ReferenceRules = UNLIMITED) -> ReadFile:
    """The connections of one file.

    Never raises: whatever is wrong is among the problems. `for_remote_service` as in `load`.
    """
    document, found = read_document(file)
    problems = [FileProblem(file, problem) for problem in found]
    if document is None and found:
        return ReadFile((), problems, {})
    members = [("", document)]
    if isinstance(document, list):
        members = [(f"[{index}]", member) for index, member in enumerate(document)]
    entries: list[FileEntry] = []
    secrets: dict[Path, object] = {}
    for path, member in members:
        if isinstance(member, dict):
            has_id = member.get("id") is not None
            written = member if has_id else {**member, "id": file.stem}
            # Keep the earliest stamp: a connection before this one may have its secret from then.
            secrets = {secret: stamp(secret) for secret in referenced_files(written, file.parent)} | secrets
            entries.append(_entry(file, path, written, for_remote_service, references))
        else:
            problems.append(FileProblem(file, Problem(path or ROOT, show(member), EXPECTED)))
    return ReadFile(entries, problems, secrets)


def _entry(
    file: Path, path: str, document: dict[str, Any], for_remote_service: bool, references: ReferenceRules
) -> FileEntry:
    try:
        return FileEntry(file, path, document, parse(document, base=file.parent, references=references), ())
    except DefinitionError as error:
        found = [
            FileProblem(file, replace(it, path=_below(path, it.path)))
            for it in error.problems
            if not (for_remote_service and _is_known_remotely(document, it))
        ]
        return FileEntry(file, path, document, None, found)


def join_files(files: Mapping[Path, ReadFile]) -> LoadedFolder:
    """Join the contents of files: an `id` in several places is loaded from none."""
    loaded = LoadedFolder(read=len(files))
    places: dict[str, list[FileEntry]] = {}
    for content in files.values():
        for entry in content.entries:
            if isinstance(name := entry.document["id"], str):
                places.setdefault(name, []).append(entry)
    for content in files.values():
        loaded.problems.extend(content.problems)
        for entry in content.entries:
            name = entry.document["id"]
            _join(entry, places[name] if isinstance(name, str) else [], loaded)
    return loaded


def _join(entry: FileEntry, same_id: Sequence[FileEntry], loaded: LoadedFolder) -> None:
    if len(same_id) > 1:
        other = next(it for it in same_id if it is not entry)
        found = f"{show(entry.document['id'])}, which is also in {other.file}{other.path and ' at ' + other.path}"
        problem = Problem(_below(entry.path, "id"), found, "an ID that no other connection has")
        loaded.problems.append(FileProblem(entry.file, problem))
    loaded.problems.extend(entry.problems)
    if len(same_id) == 1 and not entry.problems:
        name = entry.document["id"]
        if entry.connection is not None:
            loaded.connections[name] = entry.connection
        loaded.documents[name] = entry.document
        loaded.files[name] = entry.file


def _files(paths: Iterable[Path], problems: list[FileProblem]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        for file in _members(path, problems):
            if (real := _real(file)) not in seen:
                seen.add(real)
                yield file


def _real(file: Path) -> Path:
    """Return the file behind all links; a broken link stays, and reading it reports the problem."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        return file.absolute()


def _members(path: Path, problems: list[FileProblem]) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        files = [file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]
        # Of several names for one file, a link is the last one, as for the service.
        return sorted(files, key=lambda file: (file.is_symlink(), file))
    except OSError as error:
        found = f"a folder that cannot be read: {error.strerror}"
        problems.append(FileProblem(path, Problem(ROOT, found, "a readable folder")))
        return []


def _is_known_remotely(document: dict[str, Any], problem: Problem) -> bool:
    """Whether the value of a secret is known to the service only."""
    value: Any = document
    for name in problem.path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value == MASK or is_missing_here(problem)


def _below(place: str, path: str) -> str:
    """The path of a problem within the whole file."""
    if path == ROOT:
        return place or ROOT
    return f"{place}{path}" if path.startswith("[") or not place else f"{place}.{path}"

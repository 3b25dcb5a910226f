"""Connection files: `.json`, `.yaml` and `.yml`, each one connection or a list of them.

A missing `id` is the file's name without its ending. The same `id` twice is a problem in both places, and neither is
loaded. Whatever is wrong with one file or one connection never stops the others. Of a folder the files directly in it are
read, except those whose name begins with a dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from connectivity.documents import SUFFIXES, read_document
from connectivity.errors import DefinitionError, Problem
from connectivity.model import Connection
from connectivity.rules import ROOT, show
from connectivity.secrets import is_missing_here, referenced_files
from connectivity.spec import parse
from connectivity.uri import MASK

EXPECTED = "a connection or a list of connections"


class FileProblem(NamedTuple):
    """A problem and the file that it is in."""

    file: Path
    problem: Problem

    def __str__(self) -> str:
        return f"{self.file}: {self.problem}"


@dataclass(frozen=True, slots=True)
class LoadedFolder:
    """The usable connections by id, the document and the file of each, and what is wrong with the rest.

    `read` counts the files that were looked at. `secrets` are those that connections refer to, each with its `stamp` from
    before it was read. A connection that ran and whose file is now among `broken_files` was not necessarily removed by its
    owner.
    """

    connections: dict[str, Connection] = field(default_factory=dict)
    documents: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    files: dict[str, Path] = field(default_factory=dict)
    problems: list[FileProblem] = field(default_factory=list)
    secrets: dict[Path, object] = field(default_factory=dict)
    read: int = 0

    @property
    def broken_files(self) -> frozenset[Path]:
        return frozenset(problem.file for problem in self.problems)


class _Entry(NamedTuple):
    """One connection document of a file; `path` is where in the file it stands."""

    file: Path
    path: str
    document: dict[str, Any]


def stamp(file: Path) -> object:
    """Time and size of a file, or why they cannot be had: a link that leads nowhere hides no other file."""
    try:
        status = file.stat()
    except (OSError, RuntimeError, ValueError) as error:
        return str(error)
    return status.st_mtime_ns, status.st_size


def load_folder(path: Path) -> LoadedFolder:
    """The connections of a folder. Never raises: a folder that cannot be read is a problem like any other."""
    return load([path])


def load(paths: Iterable[Path], *, for_elsewhere: bool = False) -> LoadedFolder:
    """The connections of files and folders together, so that an `id` in two of them is seen. Never raises.

    `for_elsewhere`: a reference to a secret is followed by a service on another machine, and `*****` is the secret that it
    has. Neither needs a value here: their documents are there then, and no connections.
    """
    loaded = LoadedFolder()
    files = list(_files(paths, loaded.problems))
    entries = [entry for file in files for entry in _entries(file, loaded.problems)]
    places: dict[str, list[_Entry]] = {}
    for entry in entries:
        if isinstance(name := entry.document.get("id"), str):
            places.setdefault(name, []).append(entry)
    for entry in entries:
        name = entry.document.get("id")
        _load_entry(entry, places[name] if isinstance(name, str) else [], loaded, for_elsewhere)
    order = {file: index for index, file in enumerate(files)}
    loaded.problems.sort(key=lambda problem: order.get(problem.file, -1))
    return replace(loaded, read=len(files))


def _files(paths: Iterable[Path], problems: list[FileProblem]) -> Iterator[Path]:
    seen: set[Path] = set()
    for path in paths:
        for file in _members(path, problems):
            if (real := _real(file)) not in seen:
                seen.add(real)
                yield file


def _real(file: Path) -> Path:
    """The file behind all links; one that leads nowhere stays as it is, and reading it says what is wrong with it."""
    try:
        return file.resolve()
    except (OSError, RuntimeError):
        return file.absolute()


def _members(path: Path, problems: list[FileProblem]) -> list[Path]:
    try:
        if not path.is_dir():
            return [path]
        return sorted(
            file for file in path.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )
    except OSError as error:
        found = f"a folder that cannot be read: {error.strerror}"
        problems.append(FileProblem(path, Problem(ROOT, found, "a readable folder")))
        return []


def _entries(file: Path, problems: list[FileProblem]) -> Iterator[_Entry]:
    """The documents of a file, with an `id` each; what cannot be a connection becomes a problem."""
    document, found = read_document(file)
    problems += (FileProblem(file, problem) for problem in found)
    if document is None and found:
        return
    members = [("", document)]
    if isinstance(document, list):
        members = [(f"[{index}]", member) for index, member in enumerate(document)]
    for path, member in members:
        if isinstance(member, dict):
            has_id = member.get("id") is not None
            yield _Entry(file, path, member if has_id else {**member, "id": file.stem})
        else:
            problems.append(FileProblem(file, Problem(path or ROOT, show(member), EXPECTED)))


def _load_entry(entry: _Entry, same_id: list[_Entry], loaded: LoadedFolder, for_elsewhere: bool) -> None:
    if len(same_id) > 1:
        other = next(it for it in same_id if it is not entry)
        found = f"{show(entry.document['id'])}, which is also in {other.file}{other.path and ' at ' + other.path}"
        problem = Problem(_below(entry.path, "id"), found, "an id that no other connection has")
        loaded.problems.append(FileProblem(entry.file, problem))
    loaded.secrets.update((file, stamp(file)) for file in referenced_files(entry.document, entry.file.parent))
    try:
        connection = parse(entry.document, base=entry.file.parent)
    except DefinitionError as error:
        problems = [
            problem
            for problem in error.problems
            if not (for_elsewhere and _is_known_elsewhere(entry.document, problem))
        ]
        loaded.problems.extend(
            FileProblem(entry.file, replace(problem, path=_below(entry.path, problem.path))) for problem in problems
        )
        if problems:
            return
        connection = None
    if len(same_id) == 1:
        name = entry.document["id"]
        if connection is not None:
            loaded.connections[name] = connection
        loaded.documents[name] = entry.document
        loaded.files[name] = entry.file


def _is_known_elsewhere(document: dict[str, Any], problem: Problem) -> bool:
    """Whether it is a secret whose value only the service knows."""
    value: Any = document
    for name in problem.path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value == MASK or is_missing_here(problem)


def _below(place: str, path: str) -> str:
    """The path of a problem within the whole file."""
    if path == ROOT:
        return place or ROOT
    return f"{place}{path}" if path.startswith("[") or not place else f"{place}.{path}"

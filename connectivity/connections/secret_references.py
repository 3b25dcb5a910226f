"""References to secrets in connection documents: `${env:NAME}` and `${file:PATH}`.

They are replaced while a `Connection` is built, in `uri`, `credentials`, `ca`, `sshTunnel` and the values of
`specificConfig`, and nowhere else; a text may contain several. A value is literal: in the user information of a `uri` it is
percent-encoded here. Final line ends of a file are removed. A relative path starts at the folder of the document's file, or
else at the working folder. Values are not searched for references again. `ReferenceRules` say what a document may name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from connectivity.config.documents import is_encodable
from connectivity.config.problems import json_path
from connectivity.errors import Problem
from connectivity.security.files import OWN_FILE, ForbiddenPlaces, UnreadableFile, read_regular_file

PLACES = ("uri", "credentials", "ca", "sshTunnel", "specificConfig")
"""The fields of a connection in which references are replaced."""

MAX_FILE_BYTES = 1024 * 1024
MAX_CHARACTERS = 16 * MAX_FILE_BYTES
"""The most text that all references of a document may insert: each may name the same large file."""

REFERENCE = re.compile(r"\$\{(?P<kind>env|file):(?P<name>[^{}]*)\}")
"""A name has no braces: so a text of many beginnings is read once, not once for each of them."""

_OWN_VARIABLES = tuple(f"CONNECTIVITY_{name}" for name in ("SECRETS", "API", "TOKEN", "SPARK", "TRACING"))
"""The beginnings of the settings that may contain credentials."""
_SYSTEM_FOLDERS = (Path("/proc"), Path("/sys"), Path("/dev"))


@dataclass(frozen=True, slots=True)
class ReferenceRules:
    """The files and variables that references may name.

    No file may be in the `own` places. `folders`: those that files must be in; `variables`: patterns of names. None: any.
    """

    own: Sequence[Path] = ()
    folders: Sequence[Path] | None = None
    variables: Sequence[str] | None = None

    def variable_refusal(self, name: str) -> tuple[str, str] | None:
        """Return why this variable must not be read, and what was expected; None if it may."""
        if name.upper().startswith(_OWN_VARIABLES):
            return "a variable that belongs to the service", "a variable that is not a setting of the service"
        if self.variables is not None and not any(fnmatchcase(name, pattern) for pattern in self.variables):
            return "a variable that matches no pattern in secrets.variables", "a variable that secrets.variables allows"
        return None

    def file_refusal(self, path: Path) -> str | None:
        """Return why a file at this path, which has no links, must not be read, whether it exists or not."""
        if self.folders is not None and not any(path.is_relative_to(os.path.realpath(it)) for it in self.folders):
            return "a file outside the folders in secrets.folders"
        if any(path.is_relative_to(place) for place in _SYSTEM_FOLDERS):
            return "a file in a system folder"
        # An existing one is also recognized by other names when it is read.
        if any(path.is_relative_to(os.path.realpath(it)) for it in self.own):
            return OWN_FILE
        return None


UNLIMITED = ReferenceRules()
NOTHING = ReferenceRules(folders=(), variables=())


class ResolvedDocument(NamedTuple):
    """A document without references.

    `values` are the inserted texts, to be redacted everywhere; `options` are the names in `specificConfig` whose values had
    one. A reference without a value stays as it was written.
    """

    document: Any
    values: frozenset[str]
    options: frozenset[str]
    problems: list[Problem]


class MissingSecret(ValueError):
    """A reference without a value.

    `found` is the reason, `expected` the remedy. Neither contains a secret.
    """

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.found, self.expected = found, expected


def is_missing_here(problem: Problem) -> bool:
    """Whether a reference has no value on this machine only."""
    return REFERENCE.match(problem.found) is not None


def referenced_files(document: Any, base: Path | None = None) -> frozenset[Path]:
    """The files that a document's references name, whether they can be read or not."""
    if not isinstance(document, dict):
        return frozenset()
    texts = list(texts_of([document.get(name) for name in PLACES]))
    found = {match["name"] for text in texts for match in REFERENCE.finditer(text) if match["kind"] == "file"}
    return frozenset((base or Path()) / name for name in found)


def texts_of(value: Any) -> Iterator[str]:
    """Yield every text in a JSON value; names of members are left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts_of(item)


def resolve(
    document: Any,
    *,
    environ: Mapping[str, str] | None = None,
    base: Path | None = None,
    rules: ReferenceRules = UNLIMITED,
) -> ResolvedDocument:
    """Replace the references of a connection document. Never raises: missing values become problems."""
    if not isinstance(document, dict):
        return ResolvedDocument(document, frozenset(), frozenset(), [])
    reader = _Reader(os.environ if environ is None else environ, base or Path(), rules)
    copy = {name: reader.walk(value, (name,)) if name in PLACES else value for name, value in document.items()}
    options = frozenset(place[1] for place in reader.paths if place[0] == "specificConfig" and len(place) > 1)
    return ResolvedDocument(copy, frozenset(reader.values), options, reader.problems)


class _Reader:
    """Walks a document and collects replacements."""

    def __init__(self, environ: Mapping[str, str], base: Path, rules: ReferenceRules) -> None:
        self._environ, self._base, self._rules = environ, base, rules
        self.values: set[str] = set()
        self.paths: set[tuple[Any, ...]] = set()
        self.problems: list[Problem] = []
        self._left = MAX_CHARACTERS
        self._own = ForbiddenPlaces(rules.own)

    def walk(self, value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, dict):
            return {name: self.walk(item, (*place, name)) for name, item in value.items()}
        if isinstance(value, list):
            return [self.walk(item, (*place, index)) for index, item in enumerate(value)]
        if not isinstance(value, str) or "${" not in value:
            return value
        credentials_end = value.rfind("@") if place == ("uri",) else -1
        return REFERENCE.sub(lambda match: self._replacement(match, place, match.start() < credentials_end), value)

    def _replacement(self, match: re.Match[str], place: tuple[Any, ...], encode: bool) -> str:
        self.paths.add(place)
        try:
            if self._left < 0:
                raise MissingSecret(
                    f"{match[0][:100]}, after references with more than {MAX_CHARACTERS} characters in total",
                    f"at most {MAX_CHARACTERS} characters from all references of a document",
                )
            value = self._variable(match["name"]) if match["kind"] == "env" else self._file(match["name"])
            self._left -= len(value)
        except MissingSecret as missing:
            self.problems.append(Problem(json_path(*place), missing.found, missing.expected))
            return match[0]
        encoded = quote(value, safe="")
        self.values.update((value, encoded) if encode else (value,))
        return encoded if encode else value

    def _variable(self, name: str) -> str:
        if (refusal := self._rules.variable_refusal(name)) is not None:
            raise MissingSecret(f"${{env:{name}}}, {refusal[0]}", refusal[1])
        if name not in self._environ:
            raise MissingSecret(
                f"${{env:{name}}}, a variable that is not set", "the name of an environment variable that is set"
            )
        if not is_encodable(self._environ[name]):
            raise MissingSecret(
                f"${{env:{name}}}, a variable that is not UTF-8", "an environment variable that holds text"
            )
        return self._environ[name]

    def _file(self, name: str) -> str:
        reference, expected = f"${{file:{name}}}", "the path of a readable text file"
        try:
            path = Path(os.path.realpath(self._base / name))
        except ValueError:
            raise MissingSecret(f"{reference}, an invalid path", expected) from None
        if (why := self._rules.file_refusal(path)) is not None:
            raise MissingSecret(f"{reference}, {why}", "a file in an allowed folder")
        try:
            content = read_regular_file(path, most=MAX_FILE_BYTES, forbidden=self._own)
            return content.decode().replace("\r\n", "\n").rstrip("\r\n")
        except UnreadableFile as error:
            raise MissingSecret(f"{reference}, {error}", expected) from None
        except UnicodeDecodeError:
            raise MissingSecret(f"{reference}, a file that is not UTF-8", expected) from None

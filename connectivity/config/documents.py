"""Reads JSON and YAML files as plain values, and reports syntax problems.

YAML is read with its safe types only. A name repeated in one object is a problem, because the last one would silently win.
Problems give line and column, and no text, since it may contain secrets.
"""

from __future__ import annotations

import json
import math
import re
import stat
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.resolver import Resolver

from connectivity.config.problems import ROOT, json_path, show
from connectivity.errors import Problem

MAX_BYTES = 4 * 1024 * 1024
MAX_DEPTH = 100
MAX_VALUES = 100_000
MAX_DIGITS = 1_000


_SURROGATE = re.compile("[\ud800-\udfff]")


class ParsedDocument(NamedTuple):
    """The content of a file. With problems, `document` may be None."""

    document: Any
    problems: list[Problem]


class _Object(dict[Any, Any]):
    """An object that remembers which of its names were written more than once."""

    repeated: tuple[Any, ...] = ()


def read_document(path: Path) -> ParsedDocument:
    """Read a `.json`, `.yaml` or `.yml` file. Never raises: errors become problems."""
    load = _LOADERS.get(path.suffix.lower())
    if load is None:
        found = f"a file named *{path.suffix}" if path.suffix else "a file name without an extension"
        return _failure(found, f"a file named {', '.join(f'*{s}' for s in _LOADERS)}")
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            return _failure("a folder", "a file")
        if not stat.S_ISREG(status.st_mode):
            # Reading a pipe would wait for its writer.
            return _failure("a pipe, a socket or a device", "a regular file")
        if status.st_size > MAX_BYTES:
            return _failure("a larger file", f"at most {MAX_BYTES} bytes")
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _failure(f"a byte at position {error.start} that is not UTF-8", "text in UTF-8")
    except OSError as error:
        return _failure(f"a file that cannot be read: {error.strerror}", "a readable file")
    if not text.strip():
        return _failure("an empty file", "a document")
    return _load(load, text)


def read_json(content: bytes) -> ParsedDocument:
    """Read the body of a request by the rules of a `.json` file. Never raises."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _failure(f"a byte at position {error.start} that is not UTF-8", "text in UTF-8")
    return _load(_load_json, text) if text.strip() else _failure("an empty body", "JSON")


def _load(load: Callable[[str], Any], text: str) -> ParsedDocument:
    try:
        document = load(text)
    except _ParseError as error:
        return _failure(str(error), error.expected)
    if not is_within_limits(document):
        return _failure("a larger document", f"at most {MAX_VALUES} values, nested at most {MAX_DEPTH} deep")
    if problems := find_surrogates(document):
        return ParsedDocument(None, problems)
    problems = [
        Problem(json_path(*path), f"the name {show(path[-1])} several times in one object", "each name once per object")
        for path in _repeated_names(document, ())
    ]
    return ParsedDocument(document, problems)


def is_within_limits(document: object) -> bool:
    """Whether a value is small and flat enough to be walked; YAML aliases can make it endless."""
    waiting, count = [(document, 0)], 0
    while waiting:
        value, depth = waiting.pop()
        count += 1
        if depth > MAX_DEPTH or count > MAX_VALUES:
            return False
        if isinstance(value, dict):
            waiting.extend((item, depth + 1) for item in value.values())
        elif isinstance(value, list | tuple | set):
            waiting.extend((item, depth + 1) for item in value)
    return True


def find_surrogates(document: object) -> list[Problem]:
    """Return a problem for each text with half a surrogate pair (`"\\ud800"`), which cannot be encoded."""
    return [
        Problem(json_path(*path), "a text with an unpaired surrogate", "text without unpaired surrogates")
        for path in _texts_with_surrogates(document, ())
    ]


def _texts_with_surrogates(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, str) and not is_encodable(value):
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            if isinstance(name, str) and not is_encodable(name):
                yield (*path, name)
            yield from _texts_with_surrogates(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts_with_surrogates(item, (*path, index))


def is_encodable(text: str) -> bool:
    """Whether the text can be encoded."""
    return _SURROGATE.search(text) is None


def _failure(found: str, expected: str) -> ParsedDocument:
    return ParsedDocument(None, [Problem(ROOT, found, expected)])


class _ParseError(ValueError):
    """Invalid text: what was found, where, and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found)
        self.expected = expected


def _repeated_names(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for name in getattr(value, "repeated", ()):
            yield (*path, name)
        for name, item in value.items():
            yield from _repeated_names(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _repeated_names(item, (*path, index))


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = _Object(pairs)
    if len(found) < len(pairs):
        written = Counter(name for name, _ in pairs)
        found.repeated = tuple(name for name in found if written[name] > 1)
    return found


def _refuse_constant(name: str) -> float:
    raise _ParseError(f"the number {name}", "a finite number, as JSON requires")


def _parse_finite_float(text: str) -> float:
    """Refuse numbers that Python reads as infinity: they cannot be written as JSON."""
    found = float(text)
    if math.isinf(found):
        raise _ParseError("a number that is too large", "JSON with numbers below 1e308")
    return found


def _load_json(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_parse_finite_float
        )
    except json.JSONDecodeError as error:
        raise _ParseError(f"line {error.lineno}, column {error.colno}: {error.msg}", "JSON") from None
    except _ParseError:
        raise
    except (ValueError, RecursionError):
        raise _ParseError("a number that is too long, or a value that is nested too deep", "JSON") from None


_MERGE = "tag:yaml.org,2002:merge"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"", re.DOTALL)


class _Constructor(SafeConstructor):
    """Safe types only; refuses repeated names and exploding merge keys."""

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Insert merge keys, counted beforehand: a chain of them can multiply with every line."""
        for key, value in node.value:
            if key.tag != _MERGE:
                continue
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(source, yaml.MappingNode):
                    self.flatten_mapping(source)
                    self._merged += len(source.value)
                    if self._merged > MAX_VALUES:
                        raise _ParseError("a larger document", f"at most {MAX_VALUES} values from merge keys")
        super().flatten_mapping(node)

    def construct_yaml_map(self, node: yaml.MappingNode) -> Generator[dict[Any, Any], None, None]:
        found = _Object()
        yield found
        found.repeated = tuple(self._find_duplicates(node))
        found.update(self.construct_mapping(node))

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Bound the length: Python does so for decimal digits only, and cannot print longer ones."""
        if len(node.value) > MAX_DIGITS:
            raise ValueError("a number that is too long")
        return super().construct_yaml_int(node)

    def _find_duplicates(self, node: yaml.MappingNode) -> list[Hashable]:
        """Find repeated names before merge keys (`<<`), whose names may be overridden on purpose."""
        names = Counter(
            self.construct_object(key)
            for key, _ in node.value
            if key.tag != _MERGE and isinstance(key, yaml.ScalarNode)
        )
        return [name for name, count in names.items() if count > 1]

    yaml_constructors: ClassVar[dict[str | None, Any]] = {
        **SafeConstructor.yaml_constructors,
        "tag:yaml.org,2002:map": construct_yaml_map,
        "tag:yaml.org,2002:int": construct_yaml_int,
    }


class _Loader(_Constructor, yaml.SafeLoader):
    """The authoritative loader, in Python."""


def _libyaml_loader() -> Any:
    """Return a loader that is seven times as fast; None if PyYAML has no libyaml.

    It composes in Python: PyYAML's own `CSafeLoader` composes in C with unbounded recursion, so that a text of `[[[[…` ends
    the process.
    """
    try:
        from yaml._yaml import CParser
    except ImportError:
        return None

    class Fast(Composer, CParser, _Constructor, Resolver):
        def __init__(self, text: str) -> None:
            CParser.__init__(self, text)
            Composer.__init__(self)
            _Constructor.__init__(self)
            Resolver.__init__(self)

        def compose_node(self, parent: Any, index: Any) -> Any:
            scalar, in_brackets = self.peek_event(), parent is not None and parent.flow_style
            if in_brackets and isinstance(scalar, yaml.ScalarEvent) and not scalar.style and "?" in scalar.value:
                raise _LibyamlDifference
            return super().compose_node(parent, index)

    return Fast


class _LibyamlDifference(yaml.YAMLError):
    """libyaml would read more than the other loader does: a `?` within a word between brackets."""


_LIBYAML_DIFFERENCES = re.compile("[\t!\ufeff]|[|>][-+0-9]*#")
"""Texts that libyaml reads differently: tabs, tags, byte order marks, a comment after `|` or `>`."""

_fast_loader = _libyaml_loader()


def _construct(text: str) -> Any:
    if _fast_loader is not None and _LIBYAML_DIFFERENCES.search(text) is None:
        with suppress(yaml.YAMLError):
            return yaml.load(text, _fast_loader)
    return yaml.load(text, _Loader)


def _load_yaml(text: str) -> Any:
    try:
        return _construct(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        words = error.problem or "unreadable text"
        if not isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError):
            # These quote names and tags, which may be a password that begins with * or !.
            words = _QUOTED.sub("'…'", words)
        raise _ParseError(f"{place}{words}", "YAML") from None
    except yaml.reader.ReaderError as error:
        raise _ParseError(f"position {error.position}: {error.reason}", "YAML") from None
    except _ParseError:
        raise
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, ArithmeticError, RecursionError):
        # Raised by the loader's conversions for an explicit tag or date that does not match its text.
        raise _ParseError("a value that does not fit its type, or a value that is nested too deep", "YAML") from None


_LOADERS: dict[str, Callable[[str], Any]] = {".json": _load_json, ".yaml": _load_yaml, ".yml": _load_yaml}

SUFFIXES = tuple(_LOADERS)
"""The suffixes of readable files."""

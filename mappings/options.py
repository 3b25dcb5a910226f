"""Options of payload mappers: definition, validation and reading.

An `Option` is a row: its documentation, its default, and `read`, which converts the JSON value for the mapper (a parsed
template, a selection) and raises `InvalidMapperOption` for invalid values. Options are read once, when a document is
validated or a connection is created. `read_options` reports every problem at once, each with its place. Ditto
connections, payload mapping.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

from mappings.errors import Fault, MappingError, PlaceholderError
from mappings.model.field_selector import FieldSelection, InvalidSelector, parse_fields
from mappings.placeholders.header_mapping import HeaderMapping
from mappings.placeholders.template import Scope, Template, parse

INVALID = "connectivity:message.mapper.config.invalid"
"""An option that is unknown, missing, or of another type."""

FAILED = "connectivity:message.mapper.config.failed"
"""An option of the right type that cannot be made use of, as a template with an unknown placeholder."""

ReadOption: TypeAlias = Callable[[Any], Any]
"""Value as written → value as used. Raises InvalidMapperOption."""


class OptionProblem(NamedTuple):
    """One problem of options: path, value, reason, and what was expected."""

    steps: tuple[str | int, ...]
    value: object
    expected: str
    code: str = INVALID
    reason: str | None = None
    nearest: str | None = None


class InvalidMapperOption(Exception):
    """A value that an option cannot hold. `steps` lead from the option into its value."""

    def __init__(self, *problems: OptionProblem) -> None:
        super().__init__("; ".join(f"expected {problem.expected}" for problem in problems))
        self.problems = problems


class InvalidMapperOptions(MappingError):
    """Options that a mapper cannot work with; every problem of them. The fault names the first one."""

    def __init__(self, problems: Sequence[OptionProblem]) -> None:
        first = problems[0]
        place = ".".join(map(str, first.steps)) or "options"
        found = f": {first.reason}" if first.reason else ""
        super().__init__(Fault(400, first.code, f"The option '{place}' is invalid{found}; expected {first.expected}."))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a mapper. `default` is in the form of JSON; None if there is none."""

    name: str
    read: ReadOption
    description: str
    example: Any
    default: Any = None
    is_required: bool = field(default=False, kw_only=True)


def read_options(table: Sequence[Option], written: Mapping[str, Any]) -> dict[str, Any]:
    """Return every option of the table by name, read; None if it is missing without default.

    Raises InvalidMapperOptions.
    """
    rows = {option.name: option for option in table}
    problems = [_unknown(name, written[name], list(rows)) for name in written if name not in rows]
    found: dict[str, Any] = {}
    for name, option in rows.items():
        value = written.get(name)
        if value is None:
            value = option.default
        if value is None:
            found[name] = None
            if option.is_required:
                problems.append(OptionProblem((name,), None, f"a value for this required option: {option.description}"))
            continue
        try:
            found[name] = option.read(value)
        except InvalidMapperOption as error:
            problems += [problem._replace(steps=(name, *problem.steps)) for problem in error.problems]
    if problems:
        raise InvalidMapperOptions(problems)
    return found


def _unknown(name: str, value: object, known: list[str]) -> OptionProblem:
    nearest = get_close_matches(name, known, 1)
    return OptionProblem(
        (name,), value, f"one of: {', '.join(known)}", reason="unknown option", nearest=next(iter(nearest), None)
    )


def _expect(value: object, kind: type, expected: str) -> Any:
    if not isinstance(value, kind):
        raise InvalidMapperOption(OptionProblem((), value, expected))
    return value


def flag(value: object) -> bool:
    """True or false; options of old documents write it as text."""
    if value in ("true", "false"):
        return value == "true"
    return bool(_expect(value, bool, "true or false"))


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise InvalidMapperOption(OptionProblem((), value, "a non-empty string"))
    return value


def names(value: object) -> frozenset[str]:
    """Names separated by commas."""
    written = _expect(value, str, "a string of names, separated by commas")
    return frozenset(name for part in written.split(",") if (name := part.strip()))


def template(value: object) -> Template:
    """Read a template over the values of a delivery."""
    return _parse_template(text(value), ())


def address(value: object) -> Template:
    """Read a template of a reply address, over the values of the response."""
    return _parse_template(text(value), (), Scope.SOURCE)


def templates(value: object) -> HeaderMapping:
    """An object of header names and their templates; a value may be a number or a boolean."""
    written: dict[str, Any] = _expect(value, dict, "an object of names and templates")
    problems: list[OptionProblem] = []
    found: dict[str, str] = {}
    for name, each in written.items():
        if isinstance(each, bool):
            each = "true" if each else "false"
        elif isinstance(each, int | float):
            each = str(each)
        if not isinstance(each, str):
            problems.append(OptionProblem((name,), each, "a string"))
            continue
        found[name] = each
        try:
            _parse_template(each, (name,))
        except InvalidMapperOption as error:
            problems += error.problems
    if problems:
        raise InvalidMapperOption(*problems)
    return HeaderMapping(found, Scope.MAPPER)


def selection(value: object) -> FieldSelection:
    """A field selector such as `attributes(site,serial),features/lamp`."""
    try:
        return parse_fields(text(value))
    except InvalidSelector as error:
        raise InvalidMapperOption(OptionProblem((), value, "a field selector", FAILED, str(error))) from error


JsonTemplate: TypeAlias = Any
"""A JSON value in which every text with an expression is a Template."""

_EXPRESSION = re.compile(r"\{\{|\$\{")


def json_template(value: object) -> JsonTemplate:
    """Read a JSON value whose texts, keys aside, may contain expressions."""
    problems: list[OptionProblem] = []

    def read(value: object, steps: tuple[str | int, ...]) -> Any:
        if isinstance(value, dict):
            return {name: read(member, (*steps, name)) for name, member in value.items()}
        if isinstance(value, list | tuple):
            return [read(member, (*steps, index)) for index, member in enumerate(value)]
        if isinstance(value, str) and _EXPRESSION.search(value):
            try:
                return _parse_template(value, steps)
            except InvalidMapperOption as error:
                problems.extend(error.problems)
        return value

    result = read(value, ())
    if problems:
        raise InvalidMapperOption(*problems)
    return result


def _parse_template(value: str, steps: tuple[str | int, ...], scope: Scope = Scope.MAPPER) -> Template:
    try:
        return parse(value, scope)
    except PlaceholderError as error:
        expected = f"placeholders and functions that are allowed in {scope.place}"
        raise InvalidMapperOption(OptionProblem(steps, value, expected, FAILED, error.fault.message)) from error

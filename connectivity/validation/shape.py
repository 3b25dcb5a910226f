"""Reads a document into a `Connection`, even an invalid one, and collects the problems.

The models report every misshapen field at once. To check the rules across fields too, the document is repaired in a copy: a
misshapen field is removed, or replaced by its example if it is required, and rules about repaired places are not reported.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from connectivity.config.problems import ROOT, did_you_mean, expected_of, json_path, nearest_choice, show
from connectivity.connections.model import Connection
from connectivity.connections.templates import CONFIGURATION_INVALID, URI_INVALID
from connectivity.errors import Problem
from connectivity.security.uri import MASK, mask_uri

_ROUNDS = 3

_STEP = re.compile(r"[.\[]")
"""The beginning of a further step in a path."""

MAX_PROBLEMS = 100
"""The most problems of a document that are reported, since each takes time."""

_CODES = {"id": "connectivity:connection.id.invalid", "uri": URI_INVALID}


class ShapeReport(NamedTuple):
    """The result of reading a document.

    `connection` is None only if it could not be repaired; `repaired` are the repaired paths.
    """

    connection: Connection | None
    problems: list[Problem]
    repaired: frozenset[str]


def read_shape(written: object, resolved: Any) -> ShapeReport:
    """Build the connection of `resolved`; `written` is the same document with references, for display."""
    if not isinstance(written, dict):
        return ShapeReport(None, [Problem(ROOT, show(written), "an object")], frozenset())
    document = copy.deepcopy(resolved)
    problems: list[Problem] = []
    repaired: set[str] = set()
    for _ in range(_ROUNDS):
        try:
            return ShapeReport(Connection.model_validate(document), problems, frozenset(repaired))
        except ValidationError as error:
            found = error.errors(include_url=False)
            for details in found[:MAX_PROBLEMS]:
                problem = problem_of(details, Connection, written)
                if not is_within(problem.path, repaired):
                    problems.append(problem)
                # Fields of other credential types are meaningless.
                location = details["loc"][:-1] if details["type"] == "literal_error" else details["loc"]
                repaired.add(_repair(document, _place(Connection, location)))
            if len(found) > MAX_PROBLEMS:
                break
    return ShapeReport(None, problems, frozenset(repaired))


def is_within(path: str, places: frozenset[str] | set[str]) -> bool:
    """Whether the path is one of these places or inside of one."""
    return path in places or any(path[: step.start()] in places for step in _STEP.finditer(path))


def problem_of(error: ErrorDetails, model: type[BaseModel], written: object, *prefix: str) -> Problem:
    """Return a validation error as a problem. `prefix` is the path of the model in the document `written`."""
    place = _place(model, error["loc"])
    path = (*prefix, *place.path)
    kind, context = error["type"], error.get("ctx", {})
    hint = None
    match kind:
        case "missing":
            found, expected = "nothing", f"this field: {place.field.description if place.field else 'it is required'}"
        case "extra_forbidden":
            names = [str(field.alias) for field in place.model.model_fields.values()]
            found, expected = f"unknown field {show(place.name)}", f"one of: {', '.join(names)}"
            hint = did_you_mean(place.name, names)
        case "union_tag_not_found":
            path = (*path, "type")
            found, expected = "nothing", "this field: the kind of credentials"
        case _:
            if kind == "union_tag_invalid":
                path = (*path, "type")
            found, expected = _masked_value(written, path), expected_of(kind, context, error["msg"])
            hint = nearest_choice(_at(written, path), expected)
    return Problem(json_path(*path), found, expected, hint, _CODES.get(str(path[0]), CONFIGURATION_INVALID))


def _at(document: object, path: Sequence[object]) -> Any:
    for step in path:
        try:
            document = document[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return document


def _masked_value(written: object, path: Sequence[object]) -> str:
    """Return the value for display, without credentials and passwords."""
    value = _at(written, path)
    if path[0] == "uri" and isinstance(value, str):
        return show(mask_uri(value))
    if "credentials" in path[:2] and path[-1] != "type" and isinstance(value, str | int | float):
        return MASK
    return show(value)


class _ErrorPosition(NamedTuple):
    """The place of an error: model, its place in the document, field (None: unknown), steps below it."""

    model: type[BaseModel]
    holder: tuple[Any, ...]
    name: Any
    field: FieldInfo | None
    below: tuple[Any, ...] = ()

    @property
    def path(self) -> tuple[Any, ...]:
        return (*self.holder, self.name, *self.below)


def _place(model: type[BaseModel], location: Sequence[Any]) -> _ErrorPosition:
    """The place of an error.

    A location also names the kind of credentials, and keys as such; a place does not.
    """
    holder: tuple[Any, ...] = ()
    steps = [step for step in location if step != "[key]"]
    while True:
        name = steps.pop(0)
        field = next((field for field in model.model_fields.values() if name == field.alias), None)
        if field is None:
            return _ErrorPosition(model, holder, name, None)
        models = list(_models(field.annotation))
        if len(models) > 1 and steps:
            tag = steps.pop(0)
            models = [inner for inner in models if tag in get_args(inner.model_fields["type"].annotation)]
        element = (steps.pop(0),) if models and steps and _is_container(field) else ()
        if not models or not steps:
            return _ErrorPosition(model, holder, name, field, (*element, *steps))
        holder, model = (*holder, name, *element), models[0]


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _models(argument)


def _is_container(field: FieldInfo) -> bool:
    return get_origin(field.annotation) in (tuple, Mapping)


def _repair(document: Any, place: _ErrorPosition) -> str:
    """Repair the place of an error so that it can be read, and return the changed path."""
    holder, path = _at(document, place.holder), (*place.holder, place.name)
    if not isinstance(holder, dict):
        return json_path(*place.holder)
    example = copy.deepcopy((place.field.examples or [None])[0]) if place.field else None
    container = holder.get(place.name)
    if place.below and isinstance(container, list | dict) and place.field and any(_models(place.field.annotation)):
        first = example[0] if isinstance(example, list) else next(iter(example.values())) if example else None
        container[place.below[0]] = first
        return json_path(*path, place.below[0])
    if place.field and place.field.is_required():
        holder[place.name] = example
    else:
        holder.pop(place.name, None)
    return json_path(*path)

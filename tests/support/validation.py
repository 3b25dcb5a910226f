"""The problems of a connection document as a list."""

from __future__ import annotations

from typing import Any

from connectivity.errors import DefinitionError, Problem
from connectivity.validation.validator import parse


def validate(document: object, **given: Any) -> list[Problem]:
    """Return all problems of a document. `given` are further arguments of `parse`."""
    try:
        parse(document, **given)
    except DefinitionError as error:
        return list(error.problems)
    return []

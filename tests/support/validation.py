"""The problems of a connection document as a list."""

from __future__ import annotations

from typing import Any

from connectivity.connections.model import Connection
from connectivity.errors import DefinitionError, Problem
from connectivity.validation.validator import parse


def validate(document: object, **given: Any) -> list[Problem]:
    """Return every problem of a document; takes what `parse` takes."""
    try:
        assert isinstance(parse(document, **given), Connection)
    except DefinitionError as error:
        return list(error.problems)
    return []

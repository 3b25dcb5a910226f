"""Connection types and their registry; each transport package declares its own in `CONNECTION_TYPES`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from difflib import get_close_matches
from typing import cast

from connectivity.transports.base import ConnectionType

__all__ = ["ConnectionType", "connection_types", "load_connection_type"]


def _iter_declared_types() -> Iterator[tuple[str, str]]:
    for package in pkgutil.iter_modules(__path__, f"{__name__}."):
        if package.ispkg:
            yield from getattr(importlib.import_module(package.name), "CONNECTION_TYPES", {}).items()


MODULES = dict(_iter_declared_types())
"""The module that defines each connection type as `CONNECTION_TYPE`, by the type's name in documents.

It is imported when a connection needs it, together with the client library of its broker.
"""


def connection_types() -> tuple[str, ...]:
    """Return the names of the known connection types: `amqp-091`, `kafka`, …"""
    return tuple(sorted(MODULES))


def load_connection_type(name: str) -> ConnectionType:
    """Return the connection type of this name. Raises LookupError, which suggests the nearest known one."""
    if name not in MODULES:
        nearest = get_close_matches(name, MODULES, 1)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        raise LookupError(f"unknown connection type {name!r}, expected one of: {', '.join(connection_types())}{hint}")
    return cast(ConnectionType, importlib.import_module(MODULES[name]).CONNECTION_TYPE)

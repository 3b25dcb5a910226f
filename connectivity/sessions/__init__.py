"""Protocols with sessions of their own: one folder for each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from connectivity.sessions.base import SessionHandler, SessionServices

__all__ = ["SessionHandler", "SessionServices", "open_handlers"]


PROTOCOLS = tuple(sorted(package.name for package in pkgutil.iter_modules(__path__) if package.ispkg))
"""The mappers with sessions: each folder here has a mapper's name, and `HANDLER` in `handler.py`."""


def open_handlers(services: SessionServices) -> Mapping[str, SessionHandler]:
    """Create one session handler of each kind, by protocol."""
    modules = {name: importlib.import_module(f"{__name__}.{name}.handler") for name in PROTOCOLS}
    return {name: module.HANDLER(services) for name, module in modules.items()}

"""Protocols with sessions of their own: one folder for each."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from typing import cast

from connectivity.sessions.base import SessionHandler, SessionServices

__all__ = ["SessionHandler", "SessionServices", "load_handler", "open_handlers"]


PROTOCOLS = tuple(sorted(package.name for package in pkgutil.iter_modules(__path__) if package.ispkg))
"""The mappers with sessions: each folder here has a mapper's name, and `HANDLER` in `handler.py`."""


def load_handler(protocol: str) -> type[SessionHandler] | None:
    """Return the session handler of this mapper; None for mappers without sessions."""
    if protocol not in PROTOCOLS:
        return None
    return cast(type[SessionHandler], importlib.import_module(f"connectivity.sessions.{protocol}.handler").HANDLER)


def open_handlers(services: SessionServices) -> Mapping[str, SessionHandler]:
    """Create one session handler of each kind, by protocol."""
    handlers = {protocol: load_handler(protocol) for protocol in PROTOCOLS}
    return {protocol: handler(services) for protocol, handler in handlers.items() if handler is not None}

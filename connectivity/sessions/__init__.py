"""Protocols with sessions of their own: one folder for each."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from connectivity.sessions.base import SessionHandler, SessionServices
from connectivity.targets.reply_target import ReplyTargetPublisher
from connectivity.transports.base import ReaderStatus

__all__ = ["SessionHandler", "SessionHandlers", "SessionServices", "load_handler", "open_handlers"]


PROTOCOLS = tuple(sorted(package.name for package in pkgutil.iter_modules(__path__) if package.ispkg))
"""The mappers with sessions: each folder here has a mapper's name, and `HANDLER` in `handler.py`."""


def load_handler(protocol: str) -> type[SessionHandler] | None:
    """Return the session handler of this mapper; None for mappers without sessions."""
    if protocol not in PROTOCOLS:
        return None
    return cast(type[SessionHandler], importlib.import_module(f"connectivity.sessions.{protocol}.handler").HANDLER)


class SessionHandlers:
    """The session handlers of a service, by protocol. Notifications go to all of them."""

    def __init__(self, handlers: Mapping[str, SessionHandler]) -> None:
        self._handlers = handlers

    def __repr__(self) -> str:
        return f"<SessionHandlers {list(self._handlers.values())!r}>"

    def of(self, protocol: str) -> SessionHandler | None:
        """Return the session handler of a protocol; None if it has no sessions."""
        return self._handlers.get(protocol)

    def opened(self, connection_id: str, routes: Sequence[ReplyTargetPublisher]) -> None:
        """See `SessionHandler.opened`."""
        for handler in self._handlers.values():
            handler.opened(connection_id, routes)

    def close_connection(self, connection_id: str) -> None:
        """See `SessionHandler.close_connection`."""
        for handler in self._handlers.values():
            handler.close_connection(connection_id)

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """See `SessionHandler.keep_only`."""
        for handler in self._handlers.values():
            handler.keep_only(is_wanted)

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        """See `SessionHandler.reader`."""
        for handler in self._handlers.values():
            handler.reader(connection_id, address, reader_status)

    async def part(self, connection_id: str) -> None:
        """See `SessionHandler.part`."""
        await asyncio.gather(*(handler.part(connection_id) for handler in self._handlers.values()))

    def sweep(self) -> None:
        """See `SessionHandler.sweep`."""
        for handler in self._handlers.values():
            handler.sweep()

    async def close(self) -> None:
        """See `SessionHandler.close`."""
        for handler in self._handlers.values():
            await handler.close()


def open_handlers(services: SessionServices) -> SessionHandlers:
    """Create one session handler of each kind."""
    handlers = {protocol: load_handler(protocol) for protocol in PROTOCOLS}
    return SessionHandlers(
        {protocol: handler(services) for protocol, handler in handlers.items() if handler is not None}
    )

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

    def __init__(self, desks: Mapping[str, SessionHandler]) -> None:
        self._desks = desks

    def __repr__(self) -> str:
        return f"<Desks {list(self._desks.values())!r}>"

    def of(self, protocol: str) -> SessionHandler | None:
        """Return the session handler of a protocol; None if it has no sessions."""
        return self._desks.get(protocol)

    def opened(self, connection_id: str, routes: Sequence[ReplyTargetPublisher]) -> None:
        """See `SessionHandler.opened`."""
        for desk in self._desks.values():
            desk.opened(connection_id, routes)

    def close_connection(self, connection_id: str) -> None:
        """See `SessionHandler.close_connection`."""
        for desk in self._desks.values():
            desk.close_connection(connection_id)

    def keep_only(self, is_wanted: Callable[[str], bool]) -> None:
        """See `SessionHandler.keep_only`."""
        for desk in self._desks.values():
            desk.keep_only(is_wanted)

    def reader(self, connection_id: str, address: str, sign: ReaderStatus) -> None:
        """See `SessionHandler.reader`."""
        for desk in self._desks.values():
            desk.reader(connection_id, address, sign)

    async def part(self, connection_id: str) -> None:
        """See `SessionHandler.part`."""
        await asyncio.gather(*(desk.part(connection_id) for desk in self._desks.values()))

    def sweep(self) -> None:
        """See `SessionHandler.sweep`."""
        for desk in self._desks.values():
            desk.sweep()

    async def close(self) -> None:
        """See `SessionHandler.close`."""
        for desk in self._desks.values():
            await desk.close()


def open_handlers(means: SessionServices) -> SessionHandlers:
    """Create one session handler of each kind."""
    desks = {protocol: load_handler(protocol) for protocol in PROTOCOLS}
    return SessionHandlers({protocol: desk(means) for protocol, desk in desks.items() if desk is not None})

"""Accepts the sockets of a listener, and makes a peer of each that is admitted.

Sockets are judged and counted before TLS begins: the server of the event loop would report them after their handshake only,
and never those that do not finish it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import structlog

from connectivity.security.descriptors import is_reserved
from connectivity.security.logins import network_of
from connectivity.transports.listener.socket import Socket
from connectivity.transports.listener.timeouts import OPENING
from connectivity.transports.tls_layer import TlsTransport

log = structlog.get_logger(__name__)

BACKLOG = 512
"""Connections that the system queues until they are accepted."""

_TURN_SECONDS = 0.0005
"""How long sockets are accepted before other tasks get a turn on the event loop."""

_PAUSE = 1.0
"""Seconds until the next try when the system refuses, such as for lack of file descriptors."""

FULL_PAUSE = 0.01
"""Seconds until the next socket is accepted when there are too few file descriptors.

No peer can connect then, and closing sockets as fast as a flood opens them takes the system much time.
"""

_UNAVAILABLE = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


class PeerMaker(Protocol):
    """The owner of peers: the link."""

    def accepted(self, address: str, /) -> Socket | None:
        """Return a peer for a socket of this address; None if it is refused."""

    def turned_away(self, reason: str, /) -> None:
        """Called when a socket is refused for this reason."""

    def left(self, peer: Any, /) -> None:
        """Called when a socket has ended before its peer was connected."""


class Acceptor:
    """The listening sockets of a listener."""

    def __init__(self, listening: Sequence[socket.socket], link: PeerMaker, context: ssl.SSLContext | None) -> None:
        self._listening = listening
        self._link = link
        self._context = context
        self._opening: set[asyncio.Task[None]] = set()
        loop = asyncio.get_running_loop()
        self._accepting = [loop.create_task(self._accept(each)) for each in listening]

    async def close(self) -> None:
        """Accept no more sockets, and end those that are in a TLS handshake."""
        ending = [*self._accepting, *(self._opening if self._context is not None else ())]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        for each in self._listening:
            each.close()

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        begun = perf_counter()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except ConnectionError:
                # The client has gone before it was accepted.
                continue
            except OSError as error:
                log.warning("sockets not accepted", reason=error.strerror)
                await asyncio.sleep(_PAUSE)
                continue
            peer = None
            if is_full := is_reserved(accepted.fileno()):
                self._link.turned_away("the process has too few file descriptors left")
            else:
                peer = self._link.accepted(network_of(address[0]))
            if peer is None:
                accepted.close()
                if is_full:
                    await asyncio.sleep(FULL_PAUSE)
            else:
                task = loop.create_task(self._open(accepted, peer))
                self._opening.add(task)
                task.add_done_callback(self._opening.discard)
            if perf_counter() - begun > _TURN_SECONDS:
                await asyncio.sleep(0)
                begun = perf_counter()

    async def _open(self, accepted: socket.socket, peer: Socket) -> None:
        """Connect a peer, after the TLS handshake if there is one."""
        tls = TlsTransport(peer, self._context) if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: tls or peer, accepted)
            if tls is not None:
                async with asyncio.timeout(OPENING):
                    await tls.establish()
        except OSError as error:
            # A failed handshake, or a client that has gone.
            log.debug("socket not opened", peer=peer.id, reason=repr(error))
        finally:
            if not peer.was_connected:
                self._link.left(peer)


async def bind(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of the host. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    listening: list[socket.socket] = []
    failure: OSError | None = None
    with contextlib.ExitStack() as undo:
        for family, address in dict.fromkeys((each[0], each[4]) for each in found):
            try:
                made = socket.create_server(address, family=family, backlog=BACKLOG)
            except OSError as error:
                if error.errno not in _UNAVAILABLE:
                    raise
                failure = error
                continue
            undo.callback(made.close)
            made.setblocking(False)
            listening.append(made)
        if not listening:
            assert failure is not None
            raise failure
        undo.pop_all()
    return listening

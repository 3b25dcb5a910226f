"""One connection, kept running: connect, consume, settle, reconnect.

The supervisor owns reconnecting; a link that dies is thrown away and the next one made after a pause that grows. It holds
the one task per source that takes deliveries through `inbound` and `dispatch`, and it is the place where unexpected errors
end. While the store cannot write, a source keeps its unanswered deliveries, takes no more, and goes on in order later.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog

from connectivity.brokers import load_broker
from connectivity.brokers.base import Link
from connectivity.dispatch import Arrival, Dispatcher, read
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected
from connectivity.inbound import Reader
from connectivity.lifecycle import Input, Lifecycle, State, Status, back_off
from connectivity.model import Connection
from connectivity.monitor import Monitor
from connectivity.outbound import Route
from connectivity.outbox import Outbox
from connectivity.store import Store

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds before a try to connect: the first pause and the longest."""

    shortest: float = 0.5
    longest: float = 30.0


class Intake:
    """The deliveries of one source, in order, through to the dispatcher."""

    def __init__(self, reader: Reader, dispatcher: Dispatcher, store: Store) -> None:
        self._reader = reader
        self._dispatcher = dispatcher
        self._store = store
        self._postponed: list[Arrival] = []
        self._recovery: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()

    async def run(self, link: Link) -> None:
        """Take what the link brings until it ends. What a dead link had brought and is unanswered comes again."""
        self._postponed.clear()
        async for deliveries in link.consume(self._reader.route.index):
            async with self._turn:
                self._dispatcher.handle(read(self._reader, deliveries), self._postpone)

    def _postpone(self, arrivals: list[Arrival]) -> None:
        self._reader.route.meter.inbound("held", len(arrivals))
        self._postponed.extend(arrivals)
        if self._recovery is None:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Hold the source's turn until the store is back, then take up what was handed back, before anything newer."""
        async with self._turn:
            await self._store.wait_available()
            self._recovery = None
            arrivals, self._postponed = self._postponed, []
            self._dispatcher.handle(arrivals, self._postpone)


class Supervisor:
    """Keeps one connection as its document wants it."""

    def __init__(
        self,
        connection: Connection,
        dispatcher: Dispatcher,
        store: Store,
        monitor: Monitor,
        *,
        pauses: Pauses,
        max_payload: int,
        now: Callable[[], datetime],
    ) -> None:
        self.connection = connection
        self.lifecycle = Lifecycle()
        self.attempted = asyncio.Event()
        """Set when the first attempt to connect has ended, one way or the other."""
        self._store = store
        self._pauses = pauses
        self._meter = monitor.meter(connection.id)
        self._outbox = Outbox()
        self._intakes = [
            Intake(
                Reader(Route(connection, index, self._outbox, self._meter, now), max_payload=max_payload),
                dispatcher,
                store,
            )
            for index in range(len(connection.sources))
        ]
        self._running: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._log = log.bind(connection=connection.id)

    def __repr__(self) -> str:
        return f"<Supervisor {self.connection.id}, {self.status_details}>"

    @property
    def status(self) -> Status:
        return self.lifecycle.status

    @property
    def status_details(self) -> str:
        """What operators read: begins with one of the words of `Detail`, the broker's own follow."""
        if not self._store.is_available:
            return f"{Detail.STORE_UNAVAILABLE.value}: {self._store.reason}"
        if self.lifecycle.error is not None:
            return str(self.lifecycle.error)
        return {State.OPEN: Detail.CONNECTED.value, State.CONNECTING: Detail.CONNECTING.value}.get(
            self.lifecycle.state, self.lifecycle.state.value
        )

    def open(self) -> None:
        """Begin to connect."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"connection {self.connection.id}")

    async def close(self, drain: float = 0.0) -> None:
        """Stop taking deliveries, give the answers on their way `drain` seconds, leave the broker."""
        self.lifecycle.step(Input.CLOSE)
        for intake in self._running:
            intake.cancel()
        if drain and self._link is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained(), drain)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._link is not None:
            await self._link.close()
            self._link = None
        self.lifecycle.step(Input.CLOSED)
        self._meter.up.set(0)

    async def _drained(self) -> None:
        """Everything decided is durable, everything answered is at the broker."""
        await self._store.barrier()
        await self._outbox.drained()

    async def _run(self) -> None:
        self.lifecycle.step(Input.OPEN)
        while self.lifecycle.state not in (State.CLOSING, State.CLOSED):
            error = await self._connect_and_serve()
            self.lifecycle.step(Input.LOST, error)
            self.attempted.set()
            self._meter.up.set(0)
            pause = back_off(
                self.lifecycle.tries,
                error,
                shortest=self._pauses.shortest,
                longest=self._pauses.longest,
                jitter=random.random(),
            )
            if not self.connection.failover_enabled:
                self._log.warning("connection lost, and its document wants no other try", reason=str(error))
                return
            self._log.warning("connection lost", reason=str(error), tries=self.lifecycle.tries, pause=round(pause, 2))
            await asyncio.sleep(pause)
            self.lifecycle.step(Input.RETRY_DUE)

    async def _connect_and_serve(self) -> LinkError:
        """One link from birth to death; returns why it died."""
        broker = load_broker(self.connection.connection_type)
        if broker.connect is None:
            return ConnectionRefused(Detail.REFUSED, f"this version of the service does not carry {broker.name} yet")
        if self.connection.ssh_tunnel is not None and self.connection.ssh_tunnel.enabled:
            # Going around the tunnel would be worse than not going at all.
            return ConnectionRefused(Detail.REFUSED, "this version of the service has no sshTunnel")
        try:
            link = self._link = await broker.connect(self.connection)
        except LinkError as error:
            return error
        self.lifecycle.step(Input.CONNECTED)
        self.attempted.set()
        self._meter.up.set(1)
        self._log.info("connected", broker=f"{self.connection.broker_uri.host}:{self.connection.broker_uri.port}")
        try:
            return await self._serve(link)
        finally:
            self._outbox.detach()

    async def _serve(self, link: Link) -> LinkError:
        self._outbox.attach(link)
        intakes = self._running = [asyncio.create_task(intake.run(link)) for intake in self._intakes]
        try:
            ends: list[asyncio.Future[Any]] = [link.lost, *intakes]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not link.lost.done() and (stopped := self._stopped(intakes)) is not None:
                return stopped
            # Either the link has died, or it is about to say so, or the connection is being closed.
            return await asyncio.shield(link.lost)
        finally:
            for intake in intakes:
                intake.cancel()
            await asyncio.gather(*intakes, return_exceptions=True)
            if self.lifecycle.state is not State.CLOSING:
                await link.close()

    def _stopped(self, intakes: list[asyncio.Task[None]]) -> LinkError | None:
        """The mistake of our own that ended a source while its link lives."""
        for intake in intakes:
            if intake.done() and not intake.cancelled() and (error := intake.exception()) is not None:
                self._log.error("a source stopped", exc_info=error)
                return NotConnected(Detail.REFUSED, f"a source stopped: {type(error).__name__}")
        return None

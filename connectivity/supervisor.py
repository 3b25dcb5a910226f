"""One connection, kept running: connect, consume, settle, reconnect.

The supervisor owns reconnecting; a link that dies is thrown away and the next one made after a pause that grows. It holds
the one task per source that takes deliveries through `inbound` and `dispatch`, and it is the place where unexpected errors
end. While the store cannot write, a source keeps its unanswered deliveries, takes no more, and goes on in order later.

Closing takes nothing more in, ends the connection's subscriptions, and lets the answers that are on their way arrive.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any

import structlog

from connectivity.brokers import load_broker
from connectivity.brokers.base import Link
from connectivity.carried import refusal, shortfalls
from connectivity.dispatch import Arrival, Dispatcher, read
from connectivity.errors import ConnectionRefused, Detail, LinkError, NotConnected, Renewed
from connectivity.inbound import Reader
from connectivity.lifecycle import Input, Lifecycle, State, Status, back_off
from connectivity.model import Connection
from connectivity.monitor import Monitor
from connectivity.outbound import Route
from connectivity.outbox import Outbox
from connectivity.store import Store
from spark_store.errors import StoreUnavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds before a try to connect: the first pause and the longest."""

    shortest: float = 0.5
    longest: float = 30.0


class Intake:
    """What one link brings for one source, in order, through to the dispatcher."""

    def __init__(self, reader: Reader, dispatcher: Dispatcher, store: Store, *, pause: float = 0.5) -> None:
        """`pause`: seconds until deliveries are taken up again that a store which is there could not take."""
        self._reader = reader
        self._dispatcher = dispatcher
        self._store = store
        self._pause = pause
        self._held: list[Arrival] = []
        self._recovery: asyncio.Task[None] | None = None
        self._is_over = False

    async def run(self, link: Link) -> None:
        """Take what the link brings until it ends. What is unanswered then is the broker's to bring again."""
        try:
            async for deliveries in link.consume(self._reader.route.index):
                arrivals = read(self._reader, deliveries)
                while self._recovery is not None:
                    # What is held goes first.
                    await self._recovery
                self._dispatcher.handle(arrivals, self._hold)
        finally:
            self._is_over = True
            if self._recovery is not None:
                self._recovery.cancel()

    def _hold(self, arrivals: Sequence[Arrival]) -> None:
        if self._is_over:
            return
        self._reader.route.meter.inbound("held", len(arrivals))
        self._held.extend(arrivals)
        if self._recovery is None:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Wait until the store is back, and take up in their order those that were handed back."""
        while True:
            if self._store.is_available:
                await asyncio.sleep(self._pause)
            await self._store.wait_available()
            with contextlib.suppress(StoreUnavailable):
                # What is on its way still may be handed back too.
                await self._store.barrier()
                break
        arrivals, self._held = sorted(self._held, key=attrgetter("number")), []
        self._recovery = None
        self._dispatcher.handle(arrivals, self._hold)


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
        self._dispatcher = dispatcher
        self._store = store
        self._pauses = pauses
        self._meter = monitor.meter(connection.id)
        self._outbox = Outbox()
        self._readers = [
            Reader(Route(connection, index, self._outbox, self._meter, now), max_payload=max_payload)
            for index in range(len(connection.sources))
        ]
        self._running: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._link: Link | None = None
        self._has_stood = 0.0
        """How many seconds the last link lived."""
        self._log = log.bind(connection=connection.id)

    def __repr__(self) -> str:
        return f"<Supervisor {self.connection.id}, {self.status_details}>"

    @property
    def status(self) -> Status:
        return self.lifecycle.status

    @property
    def status_details(self) -> str:
        """What operators read: begins with one of the words of `Detail`, the broker's own follow."""
        state = self.lifecycle.state
        if state in (State.CLOSING, State.CLOSED):
            return str(state.value)
        if self.lifecycle.error is not None:
            return str(self.lifecycle.error)
        if state is State.OPEN and not self._store.is_available:
            return f"{Detail.STORE_UNAVAILABLE.value}: {self._store.reason}"
        return Detail.CONNECTED.value if state is State.OPEN else Detail.CONNECTING.value

    def open(self) -> None:
        """Begin to connect."""
        if self._task is None or self._task.done():
            for shortfall in shortfalls(self.connection):
                self._log.warning("this version does less than the document says", left_out=shortfall)
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"connection {self.connection.id}")

    async def close(self, drain: float = 0.0) -> None:
        """Stop taking deliveries, give the answers on their way `drain` seconds, leave the broker."""
        self.lifecycle.step(Input.CLOSE)
        for intake in self._running:
            intake.cancel()
        self._dispatcher.close_connection(self.connection.id)
        if drain and self._link is not None:
            await self._drain(self._link, drain)
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

    async def _drain(self, link: Link, seconds: float) -> None:
        """Wait for what is on its way, as long as there is somebody to take it."""
        drained = asyncio.get_running_loop().create_task(self._drained())
        ends: list[asyncio.Future[Any]] = [drained, link.lost]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        with contextlib.suppress(asyncio.CancelledError, StoreUnavailable):
            await drained

    async def _drained(self) -> None:
        """Everything decided is durable, everything answered is at the broker."""
        await self._store.barrier()
        await self._outbox.drained()

    async def _run(self) -> None:
        self.lifecycle.step(Input.OPEN)
        while True:
            self._has_stood = 0.0
            error = await self._connect_and_serve()
            self._link = None
            was_steady = self._has_stood > self._pauses.longest or isinstance(error, Renewed)
            self.lifecycle.step(Input.LOST, error, was_steady=was_steady)
            self.attempted.set()
            self._meter.up.set(0)
            if self.lifecycle.state is State.CLOSING:
                return
            if not self.connection.failover_enabled:
                self._log.warning("connection lost, and its document wants no other try", reason=str(error))
                return
            pause = back_off(
                self.lifecycle.tries,
                error,
                shortest=self._pauses.shortest,
                longest=self._pauses.longest,
                jitter=random.random(),
            )
            self._log.warning("connection lost", reason=str(error), tries=self.lifecycle.tries, pause=round(pause, 2))
            await asyncio.sleep(pause)
            self.lifecycle.step(Input.RETRY_DUE)

    async def _connect_and_serve(self) -> LinkError:
        """One link from birth to death; returns why it died."""
        if (reason := refusal(self.connection)) is not None:
            return ConnectionRefused(Detail.REFUSED, reason)
        connect = load_broker(self.connection.connection_type).connect
        assert connect is not None, "a type that is not carried has been refused"
        try:
            link = self._link = await connect(self.connection)
        except LinkError as error:
            return error
        except Exception as error:
            self._log.exception("connecting failed for a reason that nobody foresaw")
            return NotConnected(Detail.REFUSED, f"connecting failed: {type(error).__name__}")
        self.lifecycle.step(Input.CONNECTED)
        self.attempted.set()
        self._meter.up.set(1)
        self._log.info("connected", broker=f"{self.connection.broker_uri.host}:{self.connection.broker_uri.port}")
        made = time.monotonic()
        try:
            return await self._serve(link)
        finally:
            self._has_stood = time.monotonic() - made
            self._outbox.detach()

    async def _serve(self, link: Link) -> LinkError:
        self._outbox.attach(link)
        intakes = self._running = [
            asyncio.create_task(Intake(reader, self._dispatcher, self._store).run(link)) for reader in self._readers
        ]
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

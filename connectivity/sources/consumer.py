"""Deliveries on their way from a link to the dispatcher, in the order in which they came.

An `SourceConsumer` takes what one link brings for one source. While the store cannot write, a `RetryBuffer` keeps the
unanswered deliveries of all intakes of a connection together, lets them take no more, and takes all up again in the order in
which they came: whichever of several clients or sources they came by, none about the same entity overtakes another.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any

from connectivity.sources.delivery import InboundDelivery, read
from connectivity.sources.reader import SourceReader
from connectivity.store.store import Store
from connectivity.transports.base import Link
from spark_store.errors import StoreUnavailable

PAUSE = 0.5
"""Seconds until deliveries are taken up again that a store which is there could not take."""


Handle = Callable[[Sequence[InboundDelivery], Callable[[Sequence[InboundDelivery]], None]], None]
"""Has deliveries carried out in their order. Those that the store cannot take now are handed to the second argument."""


class RetryBuffer:
    """What a connection could not carry out until now."""

    def __init__(self, carry_out: Handle, store: Store, *, pause: float = PAUSE) -> None:
        self._carry_out = carry_out
        self._store = store
        self._pause = pause
        self._intakes: set[SourceConsumer] = set()
        self._held: list[tuple[InboundDelivery, SourceConsumer]] = []
        self._recovery: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Holding {len(self._held)} held>"

    def enter(self, intake: SourceConsumer) -> None:
        self._intakes.add(intake)

    def leave(self, intake: SourceConsumer) -> None:
        """The intake's link is gone: what it brought is the broker's to bring again."""
        self._intakes.discard(intake)
        self._held = [(arrival, owner) for arrival, owner in self._held if owner is not intake]
        if not self._intakes and self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    async def handle(self, arrivals: Sequence[InboundDelivery], intake: SourceConsumer) -> None:
        """Have deliveries carried out behind those that are held."""
        while self._recovery is not None:
            await asyncio.shield(self._recovery)
        self._handle(arrivals, dict.fromkeys(arrivals, intake))

    def _handle(self, arrivals: Sequence[InboundDelivery], owners: Mapping[InboundDelivery, SourceConsumer]) -> None:
        self._carry_out(arrivals, partial(self._hold, owners))

    def _hold(self, owners: Mapping[InboundDelivery, SourceConsumer], arrivals: Sequence[InboundDelivery]) -> None:
        held = [(arrival, owners[arrival]) for arrival in arrivals if owners[arrival] in self._intakes]
        if not held:
            return
        for arrival, _ in held:
            arrival.route.meter.inbound("held")
        self._held += held
        if self._recovery is None:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Take up what is held. After a mistake of our own it is given up with its links, which bring it again."""
        try:
            await self._take_up()
        except Exception as error:
            self._recovery = None
            for intake in self._intakes:
                intake.stop(error)

    async def _take_up(self) -> None:
        """Wait until the store is back, and take up in their order those that were handed back."""
        while True:
            if self._store.is_available:
                await asyncio.sleep(self._pause)
            await self._store.wait_available()
            with contextlib.suppress(StoreUnavailable):
                # What is on its way still may be handed back too.
                await self._store.barrier()
                break
        held, self._held = sorted(self._held, key=lambda each: each[0].number), []
        self._recovery = None
        self._handle([arrival for arrival, _ in held], dict(held))


class SourceConsumer:
    """What one link brings for one source."""

    def __init__(self, reader: SourceReader, holding: RetryBuffer) -> None:
        self._reader = reader
        self._holding = holding
        self._task: asyncio.Task[Any] | None = None
        self._error: Exception | None = None

    def __repr__(self) -> str:
        return f"<Intake of {self._reader.route!r}>"

    async def run(self, link: Link) -> None:
        """Take what the link brings until it ends. What is unanswered then is the broker's to bring again.

        Raises what `stop` was told.
        """
        self._task = asyncio.current_task()
        throttled = link.throttled
        self._holding.enter(self)
        try:
            async for deliveries in link.consume(self._reader.route.index):
                started = time_ns()
                if (minutes := link.throttled) != throttled:
                    self._reader.note_throttled(minutes - throttled)
                    throttled = minutes
                # Scripts take their time; the source waits for them, so that its deliveries stay in order.
                prepared = await self._reader.prepare(deliveries)
                await self._holding.handle(read(self._reader, deliveries, prepared, started), self)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._holding.leave(self)

    def stop(self, error: Exception) -> None:
        """End `run` with this error: what the link has brought cannot be carried out."""
        self._error = error
        if self._task is not None:
            self._task.cancel()

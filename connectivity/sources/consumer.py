"""Takes the deliveries of a link to the dispatcher, in the order in which they arrive.

A `SourceConsumer` consumes what one link delivers for one source. While the store cannot write, the `RetryBuffer` of the
connection holds the deliveries of all of its consumers, makes the consumers wait, and later processes the deliveries in
order of arrival. So deliveries about one entity stay in order, whichever client or source they arrive by.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import time_ns
from typing import Any

from connectivity.sources.delivery import InboundDelivery, read
from connectivity.sources.reader import SourceReader
from connectivity.store.store import Store
from connectivity.transports.base import Delivery, Link
from spark_store.errors import StoreUnavailable

PAUSE = 0.5
"""Seconds before deliveries are retried that the store refused although it is available."""

PART = 16
PART_BYTES = 64 << 10
"""The most deliveries, and bytes, of one turn of the event loop: less than a millisecond."""


Handle = Callable[[Sequence[InboundDelivery], Callable[[Sequence[InboundDelivery]], None]], None]
"""Processes deliveries in order; those that the store cannot take now go to the second argument."""


class RetryBuffer:
    """The deliveries of a connection that could not be processed because the store was unavailable."""

    def __init__(self, process: Handle, store: Store, *, pause: float = PAUSE) -> None:
        self._process = process
        self._store = store
        self._pause = pause
        self._consumers: set[SourceConsumer] = set()
        self._held: list[tuple[InboundDelivery, SourceConsumer]] = []
        self._recovery: asyncio.Task[None] | None = None

    def enter(self, consumer: SourceConsumer) -> None:
        self._consumers.add(consumer)

    def leave(self, consumer: SourceConsumer) -> None:
        """Remove a consumer whose link has ended, and its deliveries, which the broker will redeliver."""
        self._consumers.discard(consumer)
        self._held = [(delivery, owner) for delivery, owner in self._held if owner is not consumer]
        if not self._consumers and self._recovery is not None:
            self._recovery.cancel()
            self._recovery = None

    async def handle(self, deliveries: Sequence[InboundDelivery], consumer: SourceConsumer) -> None:
        """Process deliveries after those that are held."""
        while self._recovery is not None:
            await asyncio.shield(self._recovery)
        self._handle(deliveries, dict.fromkeys(deliveries, consumer))

    def _handle(self, deliveries: Sequence[InboundDelivery], owners: Mapping[InboundDelivery, SourceConsumer]) -> None:
        self._process(deliveries, partial(self._hold, owners))

    def _hold(self, owners: Mapping[InboundDelivery, SourceConsumer], deliveries: Sequence[InboundDelivery]) -> None:
        held = [(delivery, owners[delivery]) for delivery in deliveries if owners[delivery] in self._consumers]
        if not held:
            return
        for delivery, _ in held:
            delivery.route.meter.inbound("held")
        self._held += held
        if self._recovery is None:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    async def _recover(self) -> None:
        """Retry the held deliveries; an internal error ends the links, so that brokers redeliver."""
        try:
            await self._retry()
        except Exception as error:
            self._recovery = None
            for consumer in self._consumers:
                consumer.stop(error)

    async def _retry(self) -> None:
        """Wait until the store is available, and process the held deliveries in order of arrival."""
        while True:
            if self._store.is_available:
                await asyncio.sleep(self._pause)
            await self._store.wait_available()
            with contextlib.suppress(StoreUnavailable):
                # Transactions before the barrier may still hand deliveries back.
                await self._store.barrier()
                break
        held, self._held = sorted(self._held, key=lambda each: each[0].number), []
        self._recovery = None
        self._handle([delivery for delivery, _ in held], dict(held))


class SourceConsumer:
    """Consumes what one link delivers for one source."""

    def __init__(self, reader: SourceReader, retry_buffer: RetryBuffer) -> None:
        self._reader = reader
        self._retry_buffer = retry_buffer
        self._task: asyncio.Task[Any] | None = None
        self._error: Exception | None = None

    async def run(self, link: Link) -> None:
        """Consume until the link ends; the broker redelivers what is not acknowledged then.

        Raises the error that `stop` was called with.
        """
        self._task = asyncio.current_task()
        throttled = link.throttled
        self._retry_buffer.enter(self)
        try:
            async for deliveries in link.consume(self._reader.route.index):
                started = time_ns()
                if (minutes := link.throttled) != throttled:
                    self._reader.note_throttled(minutes - throttled)
                    throttled = minutes
                # The source waits for mapping scripts, so that its deliveries stay in order.
                prepared = await self._reader.prepare(deliveries)
                for part in parts(deliveries):
                    if part.start:
                        await asyncio.sleep(0)
                    inbound = read(self._reader, deliveries[part], prepared[part], started)
                    await self._retry_buffer.handle(inbound, self)
        except asyncio.CancelledError:
            if self._error is not None:
                raise self._error from None
            raise
        finally:
            self._retry_buffer.leave(self)

    def stop(self, error: Exception) -> None:
        """End `run` with this error, because the deliveries of the link cannot be processed."""
        self._error = error
        if self._task is not None:
            self._task.cancel()


def parts(deliveries: Sequence[Delivery]) -> Iterator[slice]:
    """Divide deliveries into parts of at most `PART`, and `PART_BYTES` if they are more than one."""
    start = size = 0
    for position, delivery in enumerate(deliveries):
        length = len(delivery.envelope.payload)
        if position > start and (position - start == PART or size + length > PART_BYTES):
            yield slice(start, position)
            start, size = position, 0
        size += length
    yield slice(start, len(deliveries))

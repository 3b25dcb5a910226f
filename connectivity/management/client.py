"""One client of a connection: its link to the broker, and the next one after a failure.

A broken link is replaced after a growing pause. A client runs every source of its connection and publishes from the outbox.
Clients of one connection are independent. Unexpected errors of a source end here. Unsupported connections
(`connectivity.validation.limitations`) are not attempted.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import structlog

from connectivity.connections.lifecycle import ConnectionState, Lifecycle, LifecycleEvent, back_off
from connectivity.connections.model import Connection
from connectivity.errors import ConnectionRefused, Detail, LinkError, LinkRenewed, NotConnected
from connectivity.monitoring.connection_log import ConnectionLog, EntryKind
from connectivity.sources.consumer import RetryBuffer, SourceConsumer
from connectivity.sources.reader import SourceReader
from connectivity.targets.outbox import Outbox
from connectivity.transports import load_connection_type
from connectivity.transports.base import ConsumeOptions, Link, Readers, ignore_reader_status
from connectivity.validation.limitations import refusal

log = structlog.get_logger(__name__)

_GOOD: Final = EntryKind("connection", "other", None, True)
_BAD: Final = EntryKind("connection", "other", None, False)


@dataclass(frozen=True, slots=True)
class Backoff:
    """Seconds before a try to connect: the first pause and the longest."""

    shortest: float = 0.5
    longest: float = 30.0


class ConnectionClient:
    """Keeps one link of a connection. `changed` is called when its state has changed."""

    def __init__(
        self,
        connection: Connection,
        number: int,
        readers: Sequence[SourceReader],
        retry_buffer: RetryBuffer,
        outbox: Outbox,
        entries: ConnectionLog,
        *,
        pauses: Backoff,
        consume: ConsumeOptions,
        changed: Callable[[], None],
        now: Callable[[], datetime],
        on_reader: Readers = ignore_reader_status,
    ) -> None:
        """`number`: the index of the client; `entries`: the connection log.

        `on_reader` is called with what links report about readers at reply addresses.
        """
        self.lifecycle = Lifecycle()
        self.has_attempted = False
        """Set when the first attempt to connect has ended."""
        self.link: Link | None = None
        self._connection = connection
        self.number = number
        self.since: datetime | None = None
        """When its status changed last."""
        self._entries = entries
        self._now = now
        self._readers = readers
        self._retry_buffer = retry_buffer
        self._outbox = outbox
        self._pauses = pauses
        self._consume = consume
        self._changed = changed
        self._on_reader = on_reader
        self._consuming: list[asyncio.Task[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._lived_seconds = 0.0
        """How many seconds the last link lived."""
        self._log = log.bind(connection=connection.id)
        if connection.client_count > 1:
            self._log = self._log.bind(client=number)

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def open(self) -> None:
        """Begin to connect."""
        if not self.is_running:
            name = f"connection {self._connection.id}, client {self.number}"
            self._task = asyncio.get_running_loop().create_task(self._run(), name=name)

    def stop_consuming(self) -> None:
        """Accept no more deliveries, and do not connect any more; publishing goes on until `close`."""
        self._step(LifecycleEvent.CLOSE)
        if self.link is None and self._task is not None:
            self._task.cancel()
        for consuming in self._consuming:
            consuming.cancel()

    async def close(self) -> None:
        """Leave the broker."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self.link is not None:
            await self.link.close()
            self.link = None
        self._step(LifecycleEvent.CLOSED)

    def _step(self, happened: LifecycleEvent, error: LinkError | None = None, *, was_steady: bool = False) -> None:
        before = self.lifecycle.status
        self.lifecycle.step(happened, error, was_steady=was_steady)
        if self.since is None or self.lifecycle.status is not before:
            self.since = self._now()
        self._changed()

    def _write(self, kind: EntryKind, words: str) -> None:
        """Write to the connection log what has happened to the client."""
        several = self._connection.client_count > 1
        self._entries.write(kind, f"{words} (client {self.number})" if several else words)

    async def _run(self) -> None:
        self._step(LifecycleEvent.OPEN)
        if (reason := refusal(self._connection)) is not None:
            error: LinkError = ConnectionRefused(Detail.REFUSED, reason)
            self._log.warning("connection not opened", reason=str(error))
            self._write(_BAD, f"Connection failed due to: {error}. Will not reconnect.")
            self.has_attempted = True
            self._step(LifecycleEvent.LOST, error)
            return
        while True:
            self._lived_seconds = 0.0
            error = await self._connect_and_serve()
            was_steady = self._lived_seconds > self._pauses.longest or isinstance(error, LinkRenewed)
            self.has_attempted = True
            self._step(LifecycleEvent.LOST, error, was_steady=was_steady)
            if self.lifecycle.state is ConnectionState.CLOSING:
                return
            self.link = None
            # A link that ends itself, for redeliveries, is not lost.
            if not self._connection.failover_enabled and not isinstance(error, LinkRenewed):
                self._log.warning("connection lost, failover disabled", reason=str(error))
                self._write(_BAD, f"Connection failed due to: {error}. Will not reconnect.")
                return
            pause = back_off(
                self.lifecycle.tries,
                error,
                shortest=self._pauses.shortest,
                longest=self._pauses.longest,
                jitter=random.random(),
            )
            event = "connection lost" if self._lived_seconds else "connection failed"
            self._log.warning(event, reason=str(error), tries=self.lifecycle.tries, pause=round(pause, 2))
            kind = _GOOD if isinstance(error, LinkRenewed) else _BAD
            self._write(kind, f"Connection failed due to: {error}. Will reconnect after PT{pause:.2f}S.")
            await asyncio.sleep(pause)
            self._step(LifecycleEvent.RETRY_DUE)

    async def _connect_and_serve(self) -> LinkError:
        """Connect, serve one link until it breaks, and return why it broke."""
        connect = load_connection_type(self._connection.connection_type).connect
        try:
            link = self.link = await connect(self._connection, self.number, self._consume)
        except LinkError as error:
            return error
        except Exception as error:
            self._log.exception("unexpected error while connecting")
            return NotConnected(Detail.CONNECTING, f"failed: {type(error).__name__}")
        link.readers = self._on_reader
        self.has_attempted = True
        self._step(LifecycleEvent.CONNECTED)
        self._write(_GOOD, "Connection successful")
        broker = self._connection.broker_uri
        self._log.info("connected", broker=f"{broker.host}:{broker.port}")
        made = time.monotonic()
        why: LinkError | None = None
        try:
            why = await self._serve(link)
            return why
        except Exception as error:
            self._log.exception("unexpected error while serving a link")
            why = NotConnected(Detail.CONNECTING, f"serving failed: {type(error).__name__}")
            return why
        finally:
            self._lived_seconds = time.monotonic() - made
            self._outbox.detach(self.number, was_silent=why is None or not _is_hang_up(why))

    async def _serve(self, link: Link) -> LinkError:
        consuming = self._consuming = []
        try:
            # Waiting messages are published within the call.
            self._outbox.attach(link, self.number)
            consuming += [
                asyncio.create_task(SourceConsumer(reader, self._retry_buffer).run(link)) for reader in self._readers
            ]
            ends: list[asyncio.Future[Any]] = [link.lost, *consuming]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not link.lost.done() and (stopped := self._source_failure(consuming)) is not None:
                return stopped
            # Either the link has died, or it is about to say so, or the connection is being closed.
            return await asyncio.shield(link.lost)
        finally:
            for each in consuming:
                each.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)
            if self.lifecycle.state is not ConnectionState.CLOSING:
                await link.close()

    def _source_failure(self, consuming: Sequence[asyncio.Task[None]]) -> LinkError | None:
        """Return the internal error that ended a source while its link lives."""
        for each in consuming:
            if each.done() and not each.cancelled() and (error := each.exception()) is not None:
                self._log.error("source stopped", exc_info=error)
                return NotConnected(Detail.CONNECTING, f"source stopped: {type(error).__name__}")
        return None


def _is_hang_up(error: LinkError) -> bool:
    """Whether the broker may have closed the link, perhaps because of a message."""
    return error.detail is not Detail.TIMEOUT and not isinstance(error, LinkRenewed)

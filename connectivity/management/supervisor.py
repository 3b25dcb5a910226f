"""Runs one connection: its clients, its outbox, and its combined status.

Each client keeps a link of its own (`connectivity.management.client`). The status is open if all clients are, otherwise the
worst of them with its reason. Closing accepts no more deliveries, ends the connection's subscriptions, and lets pending
responses leave. A target with the topic of connection announcements receives one after opening and one before closing; a
lost link is not announced (Ditto connections, connection announcements).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import structlog

from connectivity.connections.lifecycle import ConnectionState, Status, overall
from connectivity.connections.model import Connection
from connectivity.connections.target_topics import CONNECTION_ANNOUNCEMENTS
from connectivity.dispatch.assembly import Dispatch
from connectivity.errors import Detail
from connectivity.management.client import Backoff, ConnectionClient
from connectivity.management.hand_over import hand_over
from connectivity.management.status_report import (
    client_status,
    closed_status,
    source_statuses,
    target_statuses,
    waiting_status,
)
from connectivity.mapping.script_host import ScriptHost
from connectivity.monitoring.prometheus import PrometheusRegistry
from connectivity.monitoring.status import report
from connectivity.sources.consumer import RetryBuffer
from connectivity.sources.reader import SourceReader
from connectivity.store.store import Store
from connectivity.targets.open_connection import ConnectionComponent, OpenConnection
from connectivity.targets.outbox import Outbox
from connectivity.targets.per_address_outbox import PerAddressOutbox
from connectivity.targets.reply_target import reply_publishers
from connectivity.targets.target import TargetPublisher
from connectivity.transports import load_connection_type
from connectivity.transports.base import ConsumeOptions, Link, ReaderStatus, ignore_outcome
from connectivity.validation.limitations import caveats, ignored_parts
from mappings.ids import new_correlation_id
from mappings.model.signals import ConnectionAnnouncement
from mappings.timestamps import utc_text
from spark_store.errors import StoreUnavailable

if TYPE_CHECKING:
    from connectivity.monitoring.tracing import Tracing

log = structlog.get_logger(__name__)

_PARTING = 5 / 6
"""The share of the time for sessions that do not answer a goodbye. Pending responses leave meanwhile."""


class Supervisor:
    """Runs one connection."""

    def __init__(
        self,
        connection: Connection,
        dispatch: Dispatch,
        store: Store,
        monitor: PrometheusRegistry,
        *,
        pauses: Backoff,
        consume: ConsumeOptions,
        now: Callable[[], datetime],
        tracing: Tracing | None = None,
    ) -> None:
        self.connection = connection
        self._now = now
        self._is_linked = False
        """Whether a client is connected."""
        self._is_announced = False
        """Whether the connection's opening was announced."""
        self.attempted = asyncio.Event()
        """Set when every client's first attempt to connect has ended, one way or the other."""
        self._components = dispatch.components
        self._store = store
        self._meter = monitor.meter(connection.id)
        self._outbox = outbox_of(connection)
        self._script_host = ScriptHost()
        self._caveats = tuple(caveats(connection))
        tracer = tracing.of(connection) if tracing is not None else None
        readers = [
            SourceReader(
                *reply_publishers(connection, index, self._outbox, self._meter, now, self._script_host, tracer),
                max_payload=consume.payload,
            )
            for index in range(len(connection.sources))
        ]
        self._targets = [
            TargetPublisher(connection, index, self._outbox, self._meter, now, self._script_host, tracer)
            for index in range(len(connection.targets))
        ]
        self._meter.keep(
            {address for source in connection.sources for address in source.addresses},
            {target.address for target in connection.targets},
        )
        self._open_connection = OpenConnection(
            connection, self._targets, [route for reader in readers for route in reader.routes]
        )
        self._opening: asyncio.Task[None] | None = None
        self.deliveries = RetryBuffer(connection.id, dispatch.dispatcher.handle, store, dispatch.turns)
        self._consume = replace(
            consume,
            on_committed=partial(store.note_committed, connection.id),
            names_of=self.deliveries.names_of,
            on_new_session=self._forget_names,
        )
        self.clients = [
            ConnectionClient(
                connection,
                number,
                readers,
                self.deliveries,
                self._outbox,
                self._meter.log,
                pauses=pauses,
                consume=self._consume,
                changed=self._client_changed,
                now=now,
                on_reader=self._reader,
            )
            for number in range(connection.client_count)
        ]

    @property
    def status(self) -> Status:
        return overall([client.lifecycle.status for client in self.clients])

    @property
    def status_details(self) -> str:
        """The details for operators: they begin with a value of `Detail`, then comes the broker's text."""
        if self._opening is not None:
            return self._details_of_opening()
        states = [client.lifecycle.state for client in self.clients]
        if all(state in (ConnectionState.CLOSING, ConnectionState.CLOSED) for state in states):
            return str(states[0].value)
        status = self.status
        if status is Status.OPEN:
            return self._details_of_open(self.clients, self._conditions())
        worst = next((client for client in self.clients if client.lifecycle.status is status), self.clients[0])
        error = worst.lifecycle.error
        details = str(error) if error is not None else Detail.CONNECTING.value
        if len(states) > 1:
            details += f" ({states.count(ConnectionState.OPEN)} of {len(states)} clients connected)"
        return "; ".join((details, *self._conditions()))

    def _conditions(self) -> Iterator[str]:
        for component in self._components:
            for index, condition in component.conditions(self.connection.id):
                yield condition if index is None else f"targets[{index}] {condition}"

    def _details_of_opening(self) -> str:
        """Return the details while the clients wait for the store."""
        if not self._store.commits.is_available:
            return f"{Detail.STORE_UNAVAILABLE.value}: {self._store.commits.reason}"
        return f"{Detail.CONNECTING.value}: storing the positions of its targets"

    def _details_of_open(self, clients: Sequence[ConnectionClient], conditions: Iterable[str]) -> str:
        """Return the details for connected clients, with the conditions of targets."""
        if not self._store.commits.is_available:
            return f"{Detail.STORE_UNAVAILABLE.value}: {self._store.commits.reason}"
        for client in clients:
            if client.link is not None and (condition := client.link.condition) is not None:
                return condition
        more = "; ".join((*conditions, *self._caveats))
        return f"{Detail.CONNECTED.value}: {more}" if more else Detail.CONNECTED.value

    def status_report(self, wanted: str | None = None) -> Mapping[str, Any]:
        """Return the status of the connection and its parts.

        `wanted`: the desired status, if its document does not say it.
        """
        wanted = wanted or self.connection.connection_status
        if self._opening is not None:
            waiting = [waiting_status(client, self._details_of_opening()) for client in self.clients]
            return report(self.connection.id, wanted, waiting, [], [], None)
        running = [client for client in self.clients if client.lifecycle.status is not Status.CLOSED]
        if not running:
            return closed_status(self.connection.id, wanted, self.clients[0].since)
        conditions = defaultdict[int, list[str]](list)
        for component in self._components:
            for index, condition in component.conditions(self.connection.id):
                if index is not None:
                    conditions[index].append(condition)
        connected = [
            client.since for client in running if client.lifecycle.state is ConnectionState.OPEN and client.since
        ]
        return report(
            self.connection.id,
            wanted,
            [client_status(client, self._details_of_open([client], ())) for client in self.clients],
            [each for client in self.clients for each in source_statuses(self.connection, client)],
            [each for client in self.clients for each in target_statuses(self._targets, client, conditions)],
            min(connected, default=None),
        )

    def enable_logs(self) -> None:
        """Keep a log for the usual time. A closed connection has none."""
        if self._opening is not None or any(client.lifecycle.status is not Status.CLOSED for client in self.clients):
            self._meter.log.enable()

    def open(self) -> None:
        """Connect, after the position at which each target of events begins is stored."""
        if self._opening is not None:
            return
        self._meter.log.enable()
        if unprepared := [each for each in self._components if not each.is_prepared(self.connection)]:
            self._opening = asyncio.get_running_loop().create_task(self._prepare_and_open(unprepared))
        else:
            self._open()

    async def _prepare_and_open(self, unprepared: Sequence[ConnectionComponent]) -> None:
        try:
            for component in unprepared:
                await component.prepare(self.connection)
        finally:
            self._opening = None
        self._open()

    def _open(self) -> None:
        if not any(client.is_running for client in self.clients):
            for shortfall in ignored_parts(self.connection):
                log.warning("part of the document has no effect", connection=self.connection.id, part=shortfall)
            for component in self._components:
                component.opened(self._open_connection)
        for client in self.clients:
            client.open()

    async def hand_over(self, successor: Connection | None, others: Sequence[Connection]) -> None:
        """End the sessions of clients that neither `successor` nor `others` have. Call it before `close`."""
        await hand_over(self.clients, self.connection, successor, others, self._consume)

    async def close(self, drain: float = 0.0) -> None:
        """Close the connection.

        Within `drain` seconds: say goodbye to sessions, accept no more deliveries, let pending responses leave. Then
        disconnect.
        """
        if self._opening is not None:
            self._opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._opening
        links = [client.link for client in self.clients if client.link is not None]
        end = time.monotonic() + drain
        is_draining = bool(drain and links)
        if is_draining:
            # Answers to a goodbye arrive like other messages.
            parting = asyncio.gather(*(component.part(self.connection.id) for component in self._components))
            await self._wait(parting, links, drain * _PARTING)
        for client in self.clients:
            client.stop_consuming()
        if is_draining:
            # Confirmed now, they are not sent again later. A silent broker gets half of the time.
            stopping = asyncio.gather(*(component.stop(self.connection.id) for component in self._components))
            await self._wait(stopping, links, (end - time.monotonic()) / 2)
        self.deliveries.ledger.is_closed = True
        for component in self._components:
            component.closed(self.connection.id)
        if self._is_announced:
            self._is_announced = False
            if links:
                # After everything else for its targets; it is lost if the link is gone.
                self._announce("closed", "closedAt")
        if is_draining:
            await self._wait(self._drain(), links, end - time.monotonic())
        await asyncio.gather(*(client.close() for client in self.clients))
        await self._script_host.close()
        self._meter.log.disable()
        # Ends the waiting for clients of a closed connection.
        self.attempted.set()

    async def _forget_names(self, prefix: str) -> None:
        """Forget the deliveries of an earlier session, whose names have a prefix."""
        for component in self._components:
            component.forget_names(self.connection.id, prefix)
        await self.deliveries.forget_names(len(self.connection.sources), prefix)

    async def _wait(self, done: Awaitable[Any], links: list[Link], seconds: float) -> None:
        """Wait until `done` is done, all links are lost, or the time is over."""
        abandoned = asyncio.ensure_future(asyncio.wait([link.lost for link in links]))
        ends: list[asyncio.Future[Any]] = [asyncio.ensure_future(done), abandoned]
        await asyncio.wait(ends, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
            with contextlib.suppress(asyncio.CancelledError, StoreUnavailable):
                await end

    async def _drain(self) -> None:
        """Wait until everything decided is durable, and all responses are at the broker."""
        await self._store.commits.barrier()
        await self._outbox.drain()

    def _announce(self, name: str, at: str) -> None:
        """Send an announcement to the connection's own targets that subscribe to it."""
        value = msgspec.json.encode({at: utc_text(self._now(), "seconds")})
        headers = {"correlation-id": new_correlation_id(), "ditto-connection-id": self.connection.id}
        announcement = ConnectionAnnouncement(self.connection.id, name, value, headers)
        for target in self._open_connection.targets:
            if CONNECTION_ANNOUNCEMENTS in target.interest:
                target.post(announcement, ignore_outcome)

    def _reader(self, address: str, reader_status: ReaderStatus) -> None:
        for component in self._components:
            component.reader(self.connection.id, address, reader_status)

    def _client_changed(self) -> None:
        status = self.status
        self._meter.is_up = status is Status.OPEN
        was_linked = self._is_linked
        self._is_linked = any(client.lifecycle.state is ConnectionState.OPEN for client in self.clients)
        if self._is_linked and not was_linked:
            for client in self.clients:
                if client.link is not None:
                    for index, fault in client.link.target_faults.items():
                        self._targets[index].trouble = fault
            for component in self._components:
                component.linked(self.connection.id)
        if status is Status.OPEN and not self._is_announced:
            # Once for each opening: a link that comes and goes in between is no news.
            self._is_announced = True
            self._announce("opened", "openedAt")
        if all(client.has_attempted for client in self.clients):
            self.attempted.set()


def outbox_of(connection: Connection) -> Outbox:
    """Return the outbox of a connection: at a listener each peer has its own queue."""
    is_listener = load_connection_type(connection.connection_type).is_listener
    return PerAddressOutbox() if is_listener else Outbox(connection.client_count)

"""A link to an MQTT broker; acknowledges deliveries in the order of arrival.

**Bounds.** At `IN_FLIGHT` unsettled deliveries, or so many bytes, reading stops until half are settled. Both directions
share one socket, so while confirms are outstanding the link reads on and keeps more (`ReadLimit`). Beyond that it drops
QoS 0; at QoS 1 it stops taking messages and ends itself in order, so that the broker redelivers on the next link.

**Rejecting.** MQTT has no negative acknowledgement. A delivery to be redelivered stays unacknowledged until the next
link; with `reconnectForRedelivery` the link ends itself for that, and also when `MAX_UNACKNOWLEDGED` are unacknowledged, or
when nothing has arrived for `STALLED_SECONDS` since one was requeued.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from connectivity.errors import Detail, LinkError, LinkRenewed, NotConnected, PublishFailed
from connectivity.transports.base import (
    CONSUME_DEFAULTS,
    MOST_WAITING,
    ConsumeOptions,
    Delivery,
    Done,
    Inbox,
    InOrderSettlement,
    OutboundMessage,
    Outcome,
    Readers,
    ReadLimit,
    SharedDelivery,
    ignore_reader_status,
)
from connectivity.transports.mqtt.async_client import AsyncMqttClient
from connectivity.transports.mqtt.paho_client import SansIoPahoClient
from connectivity.transports.mqtt.properties import ServerLimits
from connectivity.transports.mqtt.protocol_version import ProtocolVersion, ReceivedPublish
from connectivity.transports.mqtt.topics import CACHED_TOPICS, Sources
from mappings.model.envelope import Envelope
from mappings.text_cache import MAX_CACHED_LENGTH

WINDOW = 100
"""The maximum number of unconfirmed messages; the broker may ask for fewer."""

IN_FLIGHT = 1000
SETTLING_PAUSE = 0.05
"""Seconds between two looks at what is unsettled of a session that ends."""

MAX_UNACKNOWLEDGED = 10
"""The smallest receive window of common brokers: unacknowledged deliveries could fill it."""

STALLED_SECONDS = 60.0
"""Seconds without a delivery after which unacknowledged ones may fill a smaller window."""


class _MqttDelivery(Delivery):
    """A delivery with packet identifier and size, and the shared one if several sources share it."""

    __slots__ = ("mid", "qos", "shared", "size")

    mid: int
    qos: int
    shared: SharedDelivery[_MqttDelivery] | None
    size: int


class MqttLink:
    """A `connectivity.transports.base.Link` to an MQTT broker."""

    window: int
    lost: asyncio.Future[LinkError]
    throttled = 0
    target_faults: Mapping[int, str] = MappingProxyType({})

    def __init__(
        self,
        dialect: ProtocolVersion,
        filters: Sequence[Sequence[str]],
        redelivery_delay: float | None,
        discard_session: Callable[[], Awaitable[None]],
        prefix: str = "mqtt:",
        consume: ConsumeOptions = CONSUME_DEFAULTS,
        stalled_seconds: float | None = None,
    ) -> None:
        """`filters`: the addresses of each source.

        `redelivery_delay`: seconds until the link ends itself after a requeued delivery, None for never.
        `discard_session`: called after the end of a session. `prefix`: the beginning of delivery names; the packet
        identifier follows. `stalled_seconds`: seconds until it ends itself if nothing follows a requeued delivery.
        """
        self._loop = asyncio.get_running_loop()
        self.lost = self._loop.create_future()
        self.window = WINDOW
        self.condition: str | None = None
        self.limits = ServerLimits()
        self._mqtt_version, self.prefix = dialect, prefix
        self._sources = Sources(filters)
        self.groups = self._sources.groups
        """The filters of each subscription by its identifier."""
        self.subscribed: list[str] = []
        """The filters that were subscribed to, with the share of each."""
        self._current: tuple[dict[str, set[int]], dict[str, set[int]]] = ({}, {})
        """The sources that have taken messages of a topic from present subscriptions.

        First for QoS 0, then for higher ones.
        """
        self._inboxes = [Inbox() for _ in filters]
        self._redelivery_delay = redelivery_delay
        self._redelivery: asyncio.Handle | None = None
        self._stalled_seconds = stalled_seconds
        self._stall: asyncio.TimerHandle | None = None
        self._is_quiet = False
        """Whether no delivery has arrived since the timer was set."""
        self._settlement = InOrderSettlement()
        self._unsettled = ReadLimit(IN_FLIGHT, consume.unsettled_bytes)
        self._withheld = 0
        self._is_started = self._is_over = self._is_full = self._is_session_over = False
        self._discard_session = discard_session
        self.readers: Readers = ignore_reader_status
        self._ended = self._delivery_ended
        self._channels: list[AsyncMqttClient] = []
        self._close_task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        state, unconfirmed = "over" if self._is_over else "up", sum(len(it.client.unconfirmed) for it in self._channels)
        return f"<MqttLink {state}, {self._unsettled.count} deliveries held, {unconfirmed} messages unconfirmed>"

    def make_channel(self, client: SansIoPahoClient) -> AsyncMqttClient:
        """Create a client of this link; the first one consumes, the last one publishes."""
        channel = AsyncMqttClient(client, self._die)
        client.on_arrival, client.reader_statuses = self._arrived, self._mqtt_version.reader_statuses
        client.on_readers = lambda address, reader_status: self.readers(address, reader_status)
        if not self._channels:
            self._in = client
        self._out = client
        self._channels.append(channel)
        return channel

    def made(self, limits: ServerLimits) -> None:
        """Start the link after its subscriptions are confirmed."""
        self.limits = limits
        self.window = min(self.window, limits.receive_maximum)
        self._is_started = True
        self._balance()

    # ── consuming ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, source: int) -> AsyncIterator[list[Delivery]]:
        return self._inboxes[source].lists()

    def _arrived(self, arrival: ReceivedPublish) -> None:
        unsettled = self._unsettled
        if (
            self._is_full
            or (unsettled.is_reached and unsettled.is_exceeded)
            or len(self._settlement.waiting) >= MOST_WAITING
        ):
            # QoS 0 may be lost. After the first QoS 1 message that is not taken, none is taken, to keep the order.
            self._is_full = self._is_full or arrival.qos > 0
            return
        headers, subscriptions = self._mqtt_version.headers_of(arrival)
        sources = self._takers(arrival, subscriptions) if subscriptions else self._sources.of(arrival.topic)
        name = f"{self.prefix}{arrival.mid}" if arrival.qos else None
        envelope = Envelope(arrival.payload, headers)
        size = len(arrival.payload) + len(arrival.properties)
        copies = []
        for index in sources or (None,):
            copy = _MqttDelivery(
                envelope, arrival.topic, name, arrival.redelivered, self._ended, skipped=arrival.skipped
            )
            copy.mid, copy.qos, copy.shared, copy.size = arrival.mid, arrival.qos, None, size
            copies.append(copy)
            if index is not None:
                inbox = self._inboxes[index]
                inbox.waiting.append(copy)
                inbox.wake()
        first = copies[0]
        unsettled.arrived(size)
        if arrival.qos:
            self._is_quiet = False
            self._settlement.arrived(first)
        if len(copies) > 1:
            shared = SharedDelivery(first, len(copies))
            for copy in copies:
                copy.shared = shared
        if unsettled.is_reached:
            self._balance()
        if not sources:  # a further copy, or a queued message of an earlier definition that matches no source
            first.settle()

    def _takers(self, arrival: ReceivedPublish, subscriptions: Sequence[int]) -> tuple[int, ...]:
        """Return the sources that take a message with subscription identifiers.

        A session also has subscriptions of earlier documents. A source takes their messages if they may have been queued
        before its present subscriptions were made; later ones are further copies. Only messages of one topic and QoS have
        an order, without retained and redelivered ones.
        """
        topic, current = arrival.topic, self._current[arrival.qos > 0]
        sources = self._sources.of_copy(topic, subscriptions)
        if sources is None:
            return tuple(index for index in self._sources.of(topic) if index not in current.get(topic, ()))
        if not (arrival.redelivered or arrival.retain):
            if (served := current.get(topic)) is not None:
                served.update(sources)
            elif len(topic) <= MAX_CACHED_LENGTH:
                if len(current) >= CACHED_TOPICS:
                    current.clear()
                current[topic] = set(sources)
        return sources

    def _delivery_ended(self, delivery: Delivery, outcome: Outcome) -> None:
        assert isinstance(delivery, _MqttDelivery)
        if self._is_over:
            return
        if (shared := delivery.shared) is not None:
            if not shared.ended(outcome):
                return
            delivery, outcome = shared.first, shared.outcome
        self._unsettled.count -= 1
        self._unsettled.size -= delivery.size
        if delivery.qos:
            for ended, ending in self._settlement.ended(delivery, outcome):
                assert isinstance(ended, _MqttDelivery)
                if ending is Outcome.REDELIVER:
                    self._withhold()
                else:
                    self._in.acknowledge(ended.mid, ended.qos)
        if self._is_full or self._channels[0].is_paused:
            self._balance()

    def _withhold(self) -> None:
        self._withheld += 1
        if self._redelivery is not None:
            return
        if self._redelivery_delay is not None:
            self._redelivery = self._loop.call_later(self._redelivery_delay, self._renew, "a delivery was requeued")
        elif self._withheld >= MAX_UNACKNOWLEDGED:
            self._redelivery = self._loop.call_soon(self._renew, f"{self._withheld} deliveries were requeued")
        elif self._stall is None and self._stalled_seconds is not None:
            self._watch_stall(self._stalled_seconds)

    def _watch_stall(self, seconds: float) -> None:
        self._is_quiet = True
        self._stall = self._loop.call_later(seconds, self._check_stall, seconds)

    def _check_stall(self, seconds: float) -> None:
        """End this link if requeued deliveries may be why nothing arrives."""
        if self._is_quiet and not self._settlement.waiting:
            self._renew("nothing has arrived since a delivery was requeued")
        else:
            self._watch_stall(seconds)

    def _renew(self, reason: str) -> None:
        """End this link in order, so that the broker redelivers what was not acknowledged."""
        if not self._is_over:
            error = LinkRenewed(Detail.CONNECTING, f"reconnecting for redelivery: {reason}")
            self._end()
            self._close_task = self._loop.create_task(self._leave(error))

    async def _leave(self, error: LinkError) -> None:
        for channel in self._channels:
            await channel.close()
        self.lost.set_result(error)

    def _balance(self) -> None:
        """Pause or resume reading."""
        if self._is_full and not self._unsettled.count:
            self._renew("too many unsettled deliveries")
            return
        channel = self._channels[0]
        waits = not self._is_started or (bool(self._in.unconfirmed) and len(self._channels) == 1)
        self._in.on_last_confirm = self._balance if waits and self._unsettled.is_reached else None
        if self._unsettled.must_pause(is_paused=channel.is_paused, waits_for_confirms=waits):
            channel.pause()
        else:
            channel.resume()

    # ── publishing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: OutboundMessage, done: Done) -> None:
        if self._is_over:
            return
        try:
            publication = self.limits.fit(self._mqtt_version.publication(message))
        except PublishFailed as error:
            done(error)
            return
        if publication.qos == 0:
            self._out.send(publication)
            self._channels[-1].when_written(partial(done, None))
            return
        self._out.send(publication, message.address, done)
        if self._channels[0].is_paused:
            self._balance()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def end_session(self) -> None:
        """See `SessionLink`."""
        if self.subscribed:
            await self._settle_kept(self._channels[0])
        if self._withheld:
            self._renew(f"the session ends after {self._withheld} requeued deliveries")
            raise NotConnected(Detail.CONNECTING, "the broker has to redeliver before the session ends")
        self._is_session_over = True

    async def _settle_kept(self, channel: AsyncMqttClient) -> None:
        """Unsubscribe, and wait until all messages that the broker has kept are settled.

        The broker answers UNSUBSCRIBE after the packets that it has sent before. So nothing is left if no message is
        unsettled when it is sent, and neither a message nor a step of one with QoS 2 arrives before the answer. It is sent
        once more for brokers that queue the two apart.
        """
        await channel.unsubscribe(self.subscribed)
        is_quiet = False

        def arrived(arrival: ReceivedPublish) -> None:
            released()
            self._arrived(arrival)

        def released() -> None:
            nonlocal is_quiet
            is_quiet = False

        self._in.on_arrival, self._in.on_released = arrived, released
        while not is_quiet:
            await asyncio.sleep(SETTLING_PAUSE)
            is_quiet = not self._unsettled.count
            await channel.unsubscribe(self.subscribed)

    async def close(self) -> None:
        self._end()
        if self._close_task is not None:
            await asyncio.shield(self._close_task)
        for channel in self._channels:
            await channel.close()
        if self._is_session_over:
            self._is_session_over = False
            await self._discard_session()

    def abandon(self) -> None:
        """Close without DISCONNECT, after a failed attempt to connect."""
        self._end()
        for channel in self._channels:
            channel.abandon()

    def _die(self, error: LinkError) -> None:
        if not self._is_over:
            self._end()
            for channel in self._channels:
                channel.abandon()
            self.lost.set_result(error)

    def _end(self) -> None:
        self._is_over = True
        for timer in (self._redelivery, self._stall):
            if timer is not None:
                timer.cancel()
        for channel in self._channels:
            channel.client.unconfirmed.clear()
        for inbox in self._inboxes:
            inbox.end()

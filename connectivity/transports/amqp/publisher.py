"""Publishes messages in confirm mode and handles confirms and returned messages.

One channel; broker and publisher number the messages alike. Messages wait while the broker blocks publishing (memory or
disk alarm), an exchange is being checked, or the channel is being reopened.

**A missing exchange** makes the broker close the channel. So each exchange is checked before its first message; if it is
missing, its messages fail, and it is checked again later. If publishing closes the channel anyway, the unconfirmed
messages are sent again one by one to find the failing one: others may arrive twice.

**An unroutable message** is returned before its confirm, without a number, so it is matched to the oldest equal
unconfirmed message.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog
from aio_pika.abc import AbstractChannel

from connectivity.errors import ConnectivityError, Detail, LinkError, MessageRefused, PublishFailed
from connectivity.transports.amqp.client import AmqpClient
from connectivity.transports.amqp.errors import NOT_FOUND, READER_STATUSES, refusal_error, unroutable_error
from connectivity.transports.amqp.frames import (
    ACK,
    BODY,
    CONTENT,
    HEADER,
    METHOD,
    METHOD_ID,
    NACK,
    RETURN,
    Reason,
    pack_content,
    pack_publish,
    read_confirm,
    read_return,
)
from connectivity.transports.amqp.options import split_address
from connectivity.transports.amqp.properties import pack_properties
from connectivity.transports.base import Done, OutboundMessage, Readers, ReaderStatus

log = structlog.get_logger(__name__)

EXCHANGE_RECHECK_DELAY = 1.0
"""Seconds until a missing exchange is checked again."""

MAX_CACHED_ADDRESSES = 4096
"""The maximum number of cached packed addresses, and of missing exchanges."""


class UnconfirmedMessage(NamedTuple):
    """A message that the broker has not confirmed, with its packed properties."""

    message: OutboundMessage
    done: Done
    exchange: str
    key: str
    properties: bytes


class AmqpPublisher:
    """The publisher of one link."""

    def __init__(self, client: AmqpClient, connection_id: str, readers: Readers) -> None:
        self._loop = asyncio.get_running_loop()
        self._client = client
        self._readers = readers
        self._log = log.bind(connection=connection_id)
        self._library_channel: AbstractChannel | None = None
        self._channel = 0
        self._number = 0
        self._addresses: dict[str, tuple[str, str, bytes]] = {}
        self._unconfirmed: dict[int, UnconfirmedMessage] = {}
        self._returned: dict[int, PublishFailed] = {}
        self._waiting: deque[tuple[OutboundMessage, Done]] = deque()
        self._resend_count = 0
        """The number of messages that are to be sent one by one."""
        self._known = {""}
        self._missing: dict[str, tuple[float, PublishFailed]] = {}
        self.blocked_reason: str | None = None
        """The broker's reason for blocking publishing; None: not blocked."""
        self._pending_work: deque[Callable[[], Awaitable[None]]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_sending = self._is_over = False
        self._current: tuple[Reason, bytes, bytes] | None = None
        self._properties, self._body, self._size = b"", bytearray(), 0

    def __len__(self) -> int:
        return len(self._unconfirmed) + len(self._waiting)

    @property
    def waits_for_broker(self) -> bool:
        """Whether messages wait for confirms, or other replies are outstanding."""
        return bool(self._unconfirmed or self._waiting or self._task)

    async def open(self) -> None:
        """Open the channel. Raises NotConnected."""
        self._library_channel = await self._client.channel(confirms=True)
        self._channel, self._number = (await self._library_channel.get_underlay_channel()).number, 0
        self._addresses.clear()
        self._client.frame_demultiplexer.takers[self._channel] = self

    async def check_exchanges(self, exchanges: set[str]) -> Mapping[str, str]:
        """Check exchanges in advance; return why each missing one cannot be used. Raises NotConnected."""
        for exchange in sorted(exchanges - self._known):
            await self._check_exchange(exchange)
        return {exchange: str(error) for exchange, (_, error) in self._missing.items()}

    # ── out ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: OutboundMessage, done: Done) -> None:
        """Publish a message (see `connectivity.transports.base.Link.publish`)."""
        if self._is_over:
            return
        if self._waiting or self._must_wait():
            self._waiting.append((message, done))
        else:
            self._send(message, done)

    def _must_wait(self) -> bool:
        return (
            self.blocked_reason is not None or self._task is not None or bool(self._resend_count and self._unconfirmed)
        )

    def _send_waiting(self) -> None:
        """Send waiting messages as far as possible."""
        if self._is_sending:
            return  # a message that fails at once calls back, and the caller publishes the next one
        self._is_sending = True
        while self._waiting and not self._is_over and not self._must_wait():
            self._send(*self._waiting.popleft())
        self._is_sending = False

    def _send(self, message: OutboundMessage, done: Done) -> None:
        address = message.address
        try:
            if (packed := self._addresses.get(address)) is None:
                packed = self._pack_address(address)
            exchange, key, method = packed
            if exchange not in self._known:
                self._hold_or_fail(exchange, message, done)
                return
            envelope = message.envelope
            properties = pack_properties(envelope.headers)
            content = pack_content(
                self._channel, properties, envelope.payload, self._client.frame_demultiplexer.frame_max
            )
        except ValueError as error:
            self._fail(done, PublishFailed(f"{address[:200]}: {error}", status=400))
            return
        self._number += 1
        self._unconfirmed[self._number] = UnconfirmedMessage(message, done, exchange, key, properties)
        self._client.send(method + content)

    def _pack_address(self, address: str) -> tuple[str, str, bytes]:
        """Return exchange, routing key and method frame. Raises ValueError for an invalid address."""
        try:
            exchange, key = split_address(address)
        except ValueError as error:
            raise ValueError(f"expected {error}") from None
        if len(self._addresses) >= MAX_CACHED_ADDRESSES:
            self._addresses.clear()
        packed = self._addresses[address] = exchange, key, pack_publish(self._channel, exchange, key)
        return packed

    def _fail(self, done: Done, error: PublishFailed) -> None:
        """Report that a message was not sent at all."""
        self._resend_count = max(0, self._resend_count - 1)
        done(error)

    # ── exchanges ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _hold_or_fail(self, exchange: str, message: OutboundMessage, done: Done) -> None:
        """Fail a message to a missing exchange, or hold it until the exchange is checked."""
        if (found := self._missing.get(exchange)) is not None:
            until, error = found
            if time.monotonic() < until:
                self._readers(message.address, ReaderStatus.UNDELIVERED)
                self._fail(done, error)
                return
            del self._missing[exchange]
        self._waiting.appendleft((message, done))
        self._add_work(partial(self._check_exchange, exchange))

    async def _check_exchange(self, exchange: str) -> None:
        reason = await self._client.missing_reason("exchange", exchange)
        if reason is not None and reason.code == NOT_FOUND:
            self._log.warning("exchange missing", exchange=exchange, reason=reason.text)
            if len(self._missing) >= MAX_CACHED_ADDRESSES:
                self._missing.clear()
            self._missing[exchange] = time.monotonic() + EXCHANGE_RECHECK_DELAY, refusal_error(reason)
        else:
            self._known.add(exchange)  # other problems of the exchange show when publishing

    def _add_work(self, work: Callable[[], Awaitable[None]]) -> None:
        """Hold all messages until this task, and those before it, are done."""
        self._pending_work.append(work)
        if self._task is None:
            self._task = self._loop.create_task(self._run_pending_work())

    async def _run_pending_work(self) -> None:
        try:
            while self._pending_work:
                await self._pending_work.popleft()()
        except LinkError as error:
            self._client.die(error)
            return
        self._task = None
        self._send_waiting()

    # ── in ────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def take(self, kind: int, payload: bytes) -> bool:
        """Handle a frame (see `connectivity.transports.amqp.demultiplexer.FrameHandler`)."""
        if kind == METHOD:
            method = METHOD_ID.unpack_from(payload)
            if method == ACK:
                self._confirmed(*read_confirm(payload, METHOD_ID.size), None)
            elif method == NACK:
                words = f"{Detail.REFUSED_BY_BROKER.value}: the broker rejected the message (basic.nack)"
                self._confirmed(*read_confirm(payload, METHOD_ID.size), MessageRefused(words))
            elif method == RETURN:
                self._current = read_return(payload, METHOD_ID.size)
            else:
                return False
            return True
        if self._current is None:
            return False
        if kind == HEADER:
            self._size = CONTENT.unpack_from(payload)[2]
            self._properties = payload[CONTENT.size :]
            self._body.clear()
        elif kind == BODY:
            self._body += payload
        if len(self._body) >= self._size:
            self._mark_returned(*self._current)
            self._current = None
        return True

    def _confirmed(self, number: int, is_multiple: bool, error: ConnectivityError | None) -> None:
        unconfirmed = self._unconfirmed
        if not is_multiple:
            ended = [number] if number in unconfirmed else []
        else:
            ended = []
            for each in unconfirmed:
                if each > number:
                    break
                ended.append(each)
        outcomes = [(unconfirmed.pop(each), self._returned.pop(each, None)) for each in ended]
        self._resend_count = max(0, self._resend_count - len(outcomes))
        for sent, returned in outcomes:
            if error is None or returned is not None:
                self._readers(
                    sent.message.address, ReaderStatus.HEARD if returned is None else ReaderStatus.UNDELIVERED
                )
            sent.done(returned or error)
        if self._waiting:
            self._send_waiting()

    def _mark_returned(self, reason: Reason, exchange: bytes, key: bytes) -> None:
        """Record which message is unroutable: its confirm follows."""
        place = exchange.decode(errors="replace"), key.decode(errors="replace")
        body, match = bytes(self._body), None
        for number, sent in self._unconfirmed.items():
            if (sent.exchange, sent.key) == place and number not in self._returned:
                if sent.message.envelope.payload != body:
                    continue
                if sent.properties == self._properties:
                    match = number
                    break
                match = match or number  # a broker may change properties on the way
        if match is not None:
            self._returned[match] = unroutable_error(reason, *place)

    def closed(self, reason: Reason) -> None:
        """Handle a channel closed by the broker because of one of the unconfirmed messages."""
        self._client.frame_demultiplexer.takers.pop(self._channel, None)
        self._current = None
        self._returned.clear()
        self._number = 0
        unconfirmed = list(self._unconfirmed.values())
        self._unconfirmed.clear()
        self._known = {""}
        self._add_work(self._open_again)
        if len(unconfirmed) == 1:
            self._resend_count = max(0, self._resend_count - 1)
            refused = unconfirmed[0]
            if (reader_status := READER_STATUSES.get(reason.code)) is not None:
                self._readers(refused.message.address, reader_status)
            refused.done(refusal_error(reason))
            return
        self._log.warning("channel closed by broker after a message", reason=reason.text, unconfirmed=len(unconfirmed))
        self._waiting.extendleft((sent.message, sent.done) for sent in reversed(unconfirmed))
        self._resend_count = len(unconfirmed)

    async def _open_again(self) -> None:
        assert self._library_channel is not None
        await self._client.wait_released(self._library_channel)
        await self.open()

    # ── alarms ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def blocked(self, reason: str | None) -> None:
        """Handle the broker blocking publishing, or (None) unblocking it."""
        self.blocked_reason = reason
        if reason is not None:
            self._log.warning("publishing blocked by broker", reason=reason)
        else:
            self._log.info("publishing unblocked by broker", waiting=len(self._waiting))
            self._send_waiting()

    def end(self) -> None:
        """Stop all reports."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._unconfirmed.clear()
        self._waiting.clear()
        self._returned.clear()

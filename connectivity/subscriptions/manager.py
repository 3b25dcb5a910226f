"""The open subscriptions: moves elements from feeds through engines to subscribers.

The engine decides what may be sent (`connectivity.subscriptions.engine`), the feed supplies elements
(`connectivity.subscriptions.feed`), and the subscriber's reply sends them with the headers of its latest command. An idle
subscription has no task and no timer: one sweep a second checks those that are due.

Only clients that share an authorization subject with its subscriber find a subscription, by scope, kind and key.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from connectivity.authorization.quotas import Quotas
from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.fair_share import FairShare, PeerShare
from connectivity.monitoring.logs import log_context
from connectivity.monitoring.prometheus import GaugeReading
from connectivity.subscriptions.engine import Subscription, SubscriptionEnded, SubscriptionState
from connectivity.subscriptions.feed import NOTHING, Feed, FeedFailed, FeedPosition, Page, PageEnd
from connectivity.subscriptions.limits import (
    MOST_TEXT,
    SHARED,
    SubscriptionLimits,
    SubscriptionQuotas,
    limit_fault,
    query_length,
)
from connectivity.subscriptions.read_ahead import (
    ConnectionBudget,
    PageCharge,
    ReadAheadBudget,
    read_ahead_metrics,
    size_of,
)
from connectivity.targets.open_connection import ConnectionComponent
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done, ReaderStatus
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.ids import EntityId, group_of, new_subscription_id
from mappings.model.headers import timeout_seconds
from mappings.model.signals import (
    Cancel,
    Complete,
    Created,
    EndReason,
    ErrorResponse,
    Failed,
    Headers,
    HistoryQuery,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from spark_store.errors import HistoryUnavailable, StoreError, StoreUnavailable

log = structlog.get_logger(__name__)

AT_ONCE = 100
"""How many messages a subscription sends before other tasks run, by default; they take about 1 ms."""

SIDE_BY_SIDE = 2
"""How many subscriptions read a page, or send a part of one, in one turn of the event loop."""

FEW = 64
"""How many stale entries a list of due subscriptions may hold before it is cleaned."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode


class SubscriberSink(Protocol):
    """The reply target for one source's subscriptions."""

    connection_id: str
    terminal_needs_request: bool

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Send a signal; None if it has no receiver. `ended` is called with the broker's result."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A client that subscribes: its reply target, its subjects, and the scope of its subscription IDs.

    `has_session`: the scope is a session with its own lifetime, whose subscriptions never expire; its owner cancels them.
    `reader`: the reply address, if the broker reports when its reader has gone; the subscriptions then end. `budget`: that
    of a session or peer; by default that of the reader, or of the broker. `at_once`: how many elements are sent before other
    tasks run. `page_items`: the size of a page, if larger than usual. `fails_once`: the client never addresses an ended
    subscription, so that is forgotten at once.
    """

    reply: SubscriberSink
    subjects: tuple[str, ...]
    scope: Hashable
    has_session: bool = False
    reader: str | None = None
    budget: ReadAheadBudget | None = None
    at_once: int = AT_ONCE
    page_items: int = 0
    fails_once: bool = False


FeedFactory = Callable[[Subscribe, tuple[str, ...]], Feed | Fault]
"""Returns the feed of a subscribe for these subjects, or the fault to send at the first request."""


class _Due(list["ActiveSubscription"]):
    """Subscriptions to be checked in one second. Those that were rescheduled since are `stale`."""

    __slots__ = ("stale",)

    def __init__(self) -> None:
        super().__init__()
        self.stale = 0

    def leave(self) -> None:
        """Note that a subscription was rescheduled; remove stale ones if they are the majority."""
        self.stale += 1
        if self.stale >= FEW and 2 * self.stale > len(self):
            self[:] = [subscription for subscription in self if subscription.due is self]
            self.stale = 0


class ActiveSubscription(Subscription):
    """A subscription with its feed and subscriber, open or recently ended.

    There may be very many idle ones: values are shared, and headers are JSON, copied to drop the encoder's spare memory.
    """

    __slots__ = (
        "budget",
        "due",
        "entity",
        "feed",
        "headers",
        "is_queued",
        "key",
        "kind",
        "peer",
        "position",
        "posting",
        "pump",
        "quota_entity",
        "share",
        "subjects",
        "subscribed",
    )

    def __init__(self, signal: Subscribe, key: str, subscriber: Subscriber, share: PeerShare, now: float) -> None:
        super().__init__(terminal_needs_request=subscriber.reply.terminal_needs_request, demand=signal.demand, now=now)
        self.kind = signal.kind
        self.key = key
        self.entity: EntityId | None = signal.query.entity
        self.subscribed = self.headers = bytes(memoryview(encode(signal.headers)))
        self.peer = subscriber
        self.subjects = subscriber.subjects
        self.share = share
        self.quota_entity: EntityId | None = None
        """The entity, if the quota of its namespace is used."""
        self.budget: ReadAheadBudget | None = None
        self.feed: Feed | None = None
        self.position: FeedPosition = 0
        self.posting: PendingPublish | None = None
        self.pump: asyncio.Task[None] | None = None
        """Reads and sends pages while there is demand."""
        self.is_queued = False
        """Whether a page waits for the read-ahead budget, which is no idleness."""
        self.due: _Due | None = None

    @property
    def connection_id(self) -> str:
        return self.peer.reply.connection_id

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.key[:6]}… of {self.entity}, {self.state.value}, demand {self.demand}>"


class SubscriptionManager(ConnectionComponent):
    """All subscriptions of the service."""

    job = "end idle subscriptions"

    def __init__(
        self,
        open_feed: FeedFactory,
        bounds: SubscriptionLimits,
        clock: Callable[[], float],
        quotas: Quotas | None = None,
    ) -> None:
        """`clock` returns monotonic seconds."""
        self._quotas = SubscriptionQuotas(quotas or Quotas(()))
        self.open_feed = open_feed
        """Opens the feed of a subscribe; session handlers that wrap the feed call it, too. Raises StoreError."""
        self._bounds = bounds
        self._clock = clock
        self._scopes: defaultdict[tuple[Hashable, SubscriptionKind], dict[str, ActiveSubscription]] = defaultdict(dict)
        self._due: defaultdict[int, _Due] = defaultdict(_Due)
        """By second: subscriptions to be checked then. Only the latest list of a subscription is valid."""
        self._second = int(clock())
        """The second of the last sweep."""
        self.shares = defaultdict[str, FairShare](lambda: FairShare(SHARED * bounds.max_per_user))
        """How the users of each connection share its subscriptions."""
        self.texts = defaultdict[str, FairShare](lambda: FairShare(MOST_TEXT))
        """How they share the length of their queries."""
        self._lengths: dict[ActiveSubscription, tuple[PeerShare, int]] = {}
        """The length of the query of each open subscription that has one, and the share that it is in."""
        self._by_reader: dict[tuple[str, str], set[ActiveSubscription]] = {}
        """By connection and reader address: subscriptions that end when the reader has gone."""
        self._turns = asyncio.Semaphore(SIDE_BY_SIDE)
        self.budgets = defaultdict[str, ConnectionBudget](ConnectionBudget)
        """The read-ahead budget of each connection."""

    def __iter__(self) -> Iterator[ActiveSubscription]:
        """Iterate over the subscriptions that have not ended."""
        return (
            subscription
            for scope in self._scopes.values()
            for subscription in scope.values()
            if not subscription.is_closed
        )

    def subscribe(self, signal: Subscribe, subscriber: Subscriber) -> None:
        """Open a subscription and send `created`; a fault of its query is sent at the first request."""
        key = signal.key or new_subscription_id()
        scope = subscriber.scope, signal.kind
        if (previous := self._scopes.get(scope, {}).get(key)) is not None and not previous.is_closed:
            # First, so that its replacement needs no additional place.
            self._cancel(previous)
        kind, query, subjects = signal.kind, signal.query, subscriber.subjects
        entity, connection_id = query.entity, subscriber.reply.connection_id
        share = self.shares[connection_id].peer(subjects, peer := subscriber.reader or subscriber.scope)
        # The most frequent query has no text.
        length = 0 if type(query) is HistoryQuery and query.filter is None else query_length(query)
        text = self.texts[connection_id].peer(subjects, peer) if length else None
        has_room = share.has_room and (text is None or text.has_room)
        fault = self._quotas.take(kind, None, subjects) if has_room else limit_fault(kind, share, text)
        if fault is None:
            feed = self._feed_of(signal, subscriber)
            # Only clients that may read the entity use the quota of its namespace, and learn of it.
            if not isinstance(feed, Fault) and (fault := self._quotas.take(kind, entity, ())) is not None:
                feed.close()
                self._quotas.give_back(None, subjects)
        if fault is not None:
            subscriber.reply.post(ErrorResponse(entity, group_of(entity), fault, signal.headers))
            return
        # Only now: cancelling the last one of a scope may end the scope.
        subscription = self._scopes[scope][key] = ActiveSubscription(signal, key, subscriber, share, self._clock())
        subscription.quota_entity = None if isinstance(feed, Fault) else entity
        share.take()
        if text is not None:
            text.take(length)
            self._lengths[subscription] = text, length
        self._reply_to(subscription, subscriber)
        if not subscriber.has_session:
            self._schedule(subscription, self._bounds.idle_timeout)
        subscriber.reply.post(Created(subscription.kind, key, subscription.entity, signal.headers))
        if isinstance(feed, Fault):
            self._end(subscription, subscription.fail(feed))
        elif feed is NOTHING:
            self._end(subscription, subscription.finish())
        else:
            subscription.feed = feed
            self._start(subscription)

    def _feed_of(self, signal: Subscribe, subscriber: Subscriber) -> Feed | Fault:
        try:
            return self.open_feed(signal, subscriber.subjects)
        except StoreError:
            about = {"connection": subscriber.reply.connection_id, **log_context(signal.headers)}
            log.exception("feed not opened", entity=str(signal.query.entity), **about)
            return INTERNAL_ERROR
        except Exception:
            self._quotas.give_back(None, subscriber.subjects)
            raise

    def request(self, signal: Request, subscriber: Subscriber) -> None:
        """Add demand, or send why it cannot be added."""
        if (subscription := self._find(signal, subscriber)) is None:
            return
        if subscription.state is SubscriptionState.CLOSED:
            if (refused := subscription.request(signal.demand)) is not None:
                subscriber.reply.post(_terminal_signal(subscription, refused, signal.headers))
            return
        subscription.headers = bytes(memoryview(encode(signal.headers)))
        if subscriber is not subscription.peer:
            self._reply_to(subscription, subscriber)
        if (ended := subscription.request(signal.demand, self._clock())) is not None:
            self._end(subscription, ended)
        self._start(subscription)

    def cancel(self, signal: Cancel, subscriber: Subscriber) -> None:
        """End a subscription without a reply."""
        if (subscription := self._find(signal, subscriber)) is not None and not subscription.is_closed:
            self._cancel(subscription)

    def idle(self, subscription: ActiveSubscription) -> int:
        """Return the whole idle seconds of a subscription; 0 while elements wait for the broker."""
        return 0 if subscription.is_queued else int(subscription.idle_seconds(self._clock()))

    def figures(self) -> Iterator[GaugeReading]:
        """Return the gauges for a scrape."""
        return read_ahead_metrics({id: budget.used_bytes for id, budget in self.budgets.items()})

    def revoke(self, subscription: ActiveSubscription, fault: Fault) -> None:
        """End a subscription by an operator; its client is sent `failed`."""
        self._end(subscription, subscription.revoke(fault))

    def reader(self, connection_id: str, address: str, reader_status: ReaderStatus) -> None:
        """Cancel the subscriptions of a reader that has gone, unless another reader has taken them over."""
        if reader_status is ReaderStatus.GONE:
            for subscription in list(self._by_reader.get((connection_id, address), ())):
                self._cancel(subscription)

    def sweep(self) -> None:
        """End idle subscriptions and forget ended ones; to be called about once a second."""
        previous, self._second = self._second, int(self._clock())
        for second in range(previous + 1, self._second + 1):
            due = self._due.pop(second, None)
            # Ending one may end others, which removes them from the list.
            for subscription in tuple(due or ()):
                if subscription.due is due:
                    subscription.due = None
                    self._check(subscription, self._clock())

    def fail_entity(self, entity: EntityId, fault: Fault) -> int:
        """Fail the subscriptions of an erased entity; return their number."""
        failed = [subscription for subscription in self if subscription.entity == entity]
        for subscription in failed:
            self._end(subscription, subscription.fail(fault))
        return len(failed)

    def abort(self, kind: SubscriptionKind) -> None:
        """Fail the subscriptions of a kind that have been requested from, at shutdown."""
        for subscription in list(self):
            if subscription.kind is kind and subscription.state is SubscriptionState.FLOWING:
                self._end(subscription, subscription.revoke(EndReason.ABORTED))

    def closed(self, connection_id: str) -> None:
        """End the subscriptions of a connection that is closed or deleted, without a reply."""
        for (scope, kind), subscriptions in list(self._scopes.items()):
            for subscription in [
                subscription for subscription in subscriptions.values() if subscription.connection_id == connection_id
            ]:
                if not subscription.is_closed:
                    self._cancel(subscription)
                self._forget(subscription, scope, kind)
        self.budgets.pop(connection_id, None)
        self.shares.pop(connection_id, None)
        self.texts.pop(connection_id, None)

    def _check(self, subscription: ActiveSubscription, now: float) -> None:
        if subscription.is_closed:
            self._forget(subscription, subscription.peer.scope, subscription.kind)
            return
        timeout, feed = self._bounds.idle_timeout, subscription.feed
        is_reading = subscription.pump is not None and feed is not None and feed.has_timeout
        ended = subscription.check_idle(now, timeout, is_working=is_reading or subscription.is_queued)
        if ended is not None:
            self._end(subscription, ended)
        else:
            self._schedule(subscription, subscription.active_at + timeout - now)

    def _schedule(self, subscription: ActiveSubscription, seconds: float) -> None:
        previous, subscription.due = subscription.due, self._due[int(self._clock() + seconds) + 1]
        subscription.due.append(subscription)
        if previous is not None:
            previous.leave()

    def _forget(self, subscription: ActiveSubscription, scope: Hashable, kind: SubscriptionKind) -> None:
        subscriptions = self._scopes.get((scope, kind))
        if subscriptions is not None and subscriptions.get(subscription.key) is subscription:
            del subscriptions[subscription.key]
            if not subscriptions:
                del self._scopes[scope, kind]

    def _reply_to(self, subscription: ActiveSubscription, subscriber: Subscriber) -> None:
        """Send to this subscriber from now on."""
        if subscription.peer.reader is not None:
            self._remove_reader(subscription)
        subscription.peer = subscriber
        receiver = subscriber.budget or self.budgets[subscriber.reply.connection_id].receiver(subscriber.reader)
        subscription.budget = receiver
        if subscriber.reader is not None:
            self._by_reader.setdefault((subscription.connection_id, subscriber.reader), set()).add(subscription)

    def _remove_reader(self, subscription: ActiveSubscription) -> None:
        """Remove a subscription from those that end with their reader."""
        assert subscription.peer.reader is not None
        reader_key = subscription.connection_id, subscription.peer.reader
        if (with_reader := self._by_reader.get(reader_key)) is not None:
            with_reader.discard(subscription)
            if not with_reader:
                del self._by_reader[reader_key]

    def _find(self, signal: Request | Cancel, subscriber: Subscriber) -> ActiveSubscription | None:
        """Return the subscription of a command, or send `not found` to this subscriber."""
        subscription = self._scopes.get((subscriber.scope, signal.kind), {}).get(signal.key)
        if subscription is not None and not set(subscription.subjects).isdisjoint(subscriber.subjects):
            return subscription
        subscriber.reply.post(Failed(signal.kind, signal.key, signal.entity, signal.headers, EndReason.NOT_FOUND))
        return None

    def _start(self, subscription: ActiveSubscription) -> None:
        """Read pages if there is demand, unless some are read already."""
        if subscription.feed is not None and subscription.pump is None and subscription.capacity:
            subscription.pump = asyncio.get_running_loop().create_task(self._run(subscription, subscription.feed))

    async def _run(self, subscription: ActiveSubscription, feed: Feed) -> None:
        then = PageEnd.MORE
        try:
            then = await self._pump(subscription, feed)
        except FeedFailed as error:
            log.warning("feed ended early", reason=str(error), **_log_fields(subscription))
            self._end(subscription, subscription.fail(error.fault))
        except HistoryUnavailable as error:
            log.error("history unavailable", reason=str(error), **_log_fields(subscription))
            self._end(subscription, subscription.fail(error.fault))
        except StoreUnavailable as error:
            log.error("feed ended early", reason=str(error), **_log_fields(subscription))
            self._end(subscription, subscription.fail(feed.store_fault))
        except Exception:
            log.exception("feed failed", **_log_fields(subscription))
            self._end(subscription, subscription.fail(INTERNAL_ERROR))
        finally:
            subscription.pump = None
            subscription.active_at = self._clock()
            if not subscription.unconfirmed:
                subscription.posting = None
        if then is PageEnd.WAIT and subscription.feed is not None:
            feed.wake(lambda: self._start(subscription))

    async def _pump(self, subscription: ActiveSubscription, feed: Feed) -> PageEnd:
        """Read and send pages while there is demand; the next one when the broker has taken the last.

        After the last requested element, read on without demand until it is known whether another one follows.
        """
        while subscription.feed is not None:
            if not subscription.sent:
                await feed.prepare()
            wanted, budget = self._bounds.page_bytes, subscription.budget
            assert budget is not None, "each subscriber has one"
            user = subscription.share.user
            charge = budget.reserve(user, wanted) or await self._wait(subscription, budget, wanted)
            try:
                then = await self._send_page(subscription, feed, charge)
            finally:
                charge.end_part()
            if then is PageEnd.END:
                self._end(subscription, subscription.finish())
                break
            if subscription.posting is not None:
                await subscription.posting.wait_until_accepted()
            if then is PageEnd.WAIT:
                return PageEnd.WAIT
            if not subscription.demand and then is not PageEnd.UNDECIDED:
                break
        return PageEnd.MORE

    async def _wait(self, subscription: ActiveSubscription, budget: ReadAheadBudget, wanted: int) -> PageCharge:
        """Charge a page to a budget when it is the subscription's turn."""
        subscription.is_queued = True
        try:
            return await budget.wait(subscription.share.user, wanted)
        finally:
            subscription.is_queued = False
            subscription.active_at = self._clock()

    async def _send_page(self, subscription: ActiveSubscription, feed: Feed, charge: PageCharge) -> PageEnd:
        """Read a page, and send it; return whether there are more. It is not kept. Raises FeedFailed."""
        await self._take_turn()
        if subscription.state is SubscriptionState.CLOSED:
            return PageEnd.MORE
        limit = min(subscription.demand, max(self._bounds.page_items, subscription.peer.page_items))
        if not subscription.sent and feed.is_prompt:
            page = await self._first_page(subscription, feed, limit, charge.size)
        else:
            page = await feed.page(subscription.position, limit, charge.size)
        charge.hold(size_of(page.elements, len(subscription.headers)))
        subscription.position = page.position
        await self._send_in_turns(subscription, page.elements, charge)
        if page.fault is not None:
            if subscription.posting is not None:
                await subscription.posting.wait_until_accepted()
            raise FeedFailed(page.fault)
        return page.then

    async def _first_page(self, subscription: ActiveSubscription, feed: Feed, limit: int, max_bytes: int) -> Page:
        """Return a page before the first element, within the subscribe's `timeout`. Raises FeedFailed."""
        headers = decode(subscription.subscribed)
        seconds = (timeout_seconds(headers) if "timeout" in headers else None) or self._bounds.open_timeout
        try:
            async with asyncio.timeout(seconds):
                return await feed.page(subscription.position, limit, max_bytes)
        except TimeoutError as error:
            raise FeedFailed(INTERNAL_ERROR) from error

    async def _take_turn(self) -> None:
        """Wait for a turn of the event loop in which few other subscriptions read or send elements."""
        await asyncio.sleep(0)
        await self._turns.acquire()
        asyncio.get_running_loop().call_soon(self._turns.release)

    async def _send_in_turns(
        self, subscription: ActiveSubscription, elements: Sequence[Any], charge: PageCharge
    ) -> None:
        """Send a page in parts, so that other subscriptions and the brokers' confirms run in between."""
        at_once = subscription.peer.at_once
        for start in range(0, len(elements), at_once):
            if start:
                if subscription.posting is not None:
                    await subscription.posting.wait_until_accepted()
                await self._take_turn()
            if subscription.state is SubscriptionState.CLOSED:
                return
            self._send(subscription, elements[start : start + at_once], charge)

    def _send(self, subscription: ActiveSubscription, elements: Sequence[Any], charge: PageCharge) -> None:
        """Send elements of the page with this charge, with the headers of the latest command."""
        subscription.emit(len(elements))
        headers, subscribed = decode(subscription.headers), decode(subscription.subscribed)
        signal = Next(subscription.kind, subscription.key, subscription.entity, headers, elements, subscribed)
        charge.parts += 1
        try:
            subscription.posting = subscription.peer.reply.post(signal, partial(self._on_sent, subscription, charge))
        except Exception:
            # No confirm will end this part.
            charge.end_part()
            raise
        if subscription.posting is None:
            subscription.confirm(self._clock())
            charge.end_part()

    def _end(self, subscription: ActiveSubscription, ended: SubscriptionEnded | None) -> None:
        """Send the terminal signal, if it is due, with the headers of the latest command."""
        if ended is not None:
            self._release(subscription, _terminal_signal(subscription, ended, decode(subscription.headers)))

    def _on_sent(self, subscription: ActiveSubscription, charge: PageCharge, error: ConnectivityError | None) -> None:
        """Note the broker's result for a part of a page: a refusal fails the subscription."""
        charge.end_part()
        if error is None:
            ended = subscription.confirm(self._clock())
        else:
            fault = error.fault if isinstance(error, PublishFailed) else INTERNAL_ERROR
            ended = subscription.refuse(fault, self._clock())
        if ended is not None:
            self._end(subscription, ended)
        if not subscription.unconfirmed and subscription.pump is None:
            subscription.posting = None

    def _cancel(self, subscription: ActiveSubscription) -> None:
        subscription.cancel()
        self._release(subscription)

    def _release(self, subscription: ActiveSubscription, signal: Complete | Failed | None = None) -> None:
        """Withdraw waiting elements, send the terminal signal, and release all that late commands do not need."""
        if subscription.posting is not None:
            subscription.posting.withdrawn = True
        if signal is not None:
            subscription.peer.reply.post(signal)
        if subscription.feed is not None:
            subscription.feed.close()
            subscription.feed = None
        if subscription.pump is not None:
            # It may wait for a page, or for a link, that will not come.
            subscription.pump.cancel()
        subscription.share.give_back()
        if (held := self._lengths.pop(subscription, None)) is not None:
            held[0].give_back(held[1])
        self._quotas.give_back(subscription.quota_entity, subscription.subjects)
        if subscription.peer.reader is not None:
            self._remove_reader(subscription)
        if subscription.peer.fails_once:
            self._forget(subscription, subscription.peer.scope, subscription.kind)
        else:
            self._schedule(subscription, self._bounds.after_life)


def _terminal_signal(subscription: ActiveSubscription, ended: SubscriptionEnded, headers: Headers) -> Complete | Failed:
    kind, key, entity = subscription.kind, subscription.key, subscription.entity
    if ended.reason is None:
        return Complete(kind, key, entity, headers)
    return Failed(kind, key, entity, headers, ended.reason)


def _log_fields(subscription: ActiveSubscription) -> dict[str, Any]:
    """Return the log fields of a subscription and its conversation."""
    entity = str(subscription.entity) if subscription.entity is not None else None
    return {"connection": subscription.connection_id, "entity": entity, **log_context(decode(subscription.headers))}

"""The open subscriptions: each with its engine, its feed and the latest command that its answers go to.

Moves elements from feeds through engines to reply-targets, and ends what nobody asks for. The engine decides what may be
sent (`connectivity.subscriptions.engine`), the feed what there is (`connectivity.subscriptions.feed`), the reply how it
leaves. A subscription that nobody asks has no task and no timer: one sweep a second looks at those whose time has come.

A subscription is found by scope, kind and key, and only by somebody who shares an authorization subject with the one who
subscribed; to anybody else it does not exist.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
import structlog

from connectivity.errors import ConnectivityError, PublishFailed
from connectivity.monitoring.log_context import log_context
from connectivity.subscriptions.engine import ElementsEmitted, Output, Subscription, SubscriptionState
from connectivity.subscriptions.feed import NOTHING, Feed, FeedFailed, PageEnd, Position
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import INTERNAL_ERROR, Fault
from mappings.ids import EntityId, new_subscription_id
from mappings.model.signals import (
    Cancel,
    Complete,
    Created,
    EndReason,
    ErrorResponse,
    Failed,
    Headers,
    Next,
    Outbound,
    Request,
    Subscribe,
    SubscriptionKind,
)
from spark_store.errors import HistoryUnavailable, StoreError

log = structlog.get_logger(__name__)


AT_ONCE = 100
"""Elements that one subscription sends before others have their turn, where each is a message: about a millisecond."""

FEW = 64
"""So many of those that are due in one second may be held though nothing is to be done about them any more."""

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode


class SubscriberSink(Protocol):
    """Where the answers to one source's commands go."""

    connection_id: str
    terminal_needs_request: bool

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish | None:
        """Send a signal; None where nobody receives it. `ended` is told whether the broker took it."""


@dataclass(frozen=True, slots=True)
class Subscriber:
    """Who speaks: the reply, the authorization subjects, and the scope in which subscription ids are unique.

    `has_session`: the scope is a session that has a lifetime of its own. Its subscriptions end when whoever keeps the
    session cancels them, and never for lack of interaction. `reader`: the address of who reads the answers, where it is
    told when that one has gone; its subscriptions end with it. `at_once`: how many elements it is sent before others have
    their turn. `page_items`: how many a page may have, where that is more than the usual. `is_told_once`: nobody asks for a
    subscription of it that has ended, so nothing is kept to answer by.
    """

    reply: SubscriberSink
    subjects: tuple[str, ...]
    scope: Hashable
    has_session: bool = False
    reader: str | None = None
    at_once: int = AT_ONCE
    page_items: int = 0
    is_told_once: bool = False


@dataclass(frozen=True, slots=True)
class SubscriptionLimits:
    """The timers (seconds) and sizes of subscriptions."""

    idle_timeout: float = 60.0
    after_life: float = 10.0
    max_per_connection: int = 10_000
    page_items: int = 500
    page_bytes: int = 1 << 20


FeedFactory = Callable[[Subscribe, tuple[str, ...]], Feed | Fault]
"""The feed of a subscribe for these subjects, or why there is none: told at the first request."""


class _Due(list["ActiveSubscription"]):
    """Who is looked at in one second. Those that are looked at in another one by now are `stale`."""

    __slots__ = ("stale",)

    def __init__(self) -> None:
        super().__init__()
        self.stale = 0

    def leave(self) -> None:
        """One is looked at in another second now. Where most are, what is left of them is let go."""
        self.stale += 1
        if self.stale >= FEW and 2 * self.stale > len(self):
            self[:] = [live for live in self if live.due is self]
            self.stale = 0


class ActiveSubscription(Subscription):
    """One open subscription, or one that ended a moment ago.

    There may be very many, and most of them wait: headers rest as JSON text, and whatever can be shared is.
    """

    __slots__ = (
        "due",
        "entity",
        "feed",
        "headers",
        "key",
        "kind",
        "peer",
        "position",
        "posting",
        "pump",
        "subjects",
        "subscribed",
        "touched",
    )

    def __init__(self, signal: Subscribe, key: str, peer: Subscriber, now: int) -> None:
        super().__init__(terminal_needs_request=peer.reply.terminal_needs_request, demand=signal.demand)
        self.kind = signal.kind
        self.key = key
        self.entity: EntityId | None = signal.query.entity
        self.subscribed = self.headers = encode(signal.headers)
        self.peer = peer
        self.subjects = peer.subjects
        self.feed: Feed | None = None
        self.position: Position = 0
        self.posting: PendingPublish | None = None
        self.pump: asyncio.Task[None] | None = None
        self.touched = now
        self.due: _Due | None = None

    @property
    def connection_id(self) -> str:
        return self.peer.reply.connection_id

    def __repr__(self) -> str:
        return f"<{self.kind.value} {self.key[:6]}… of {self.entity}, {self.state.value}, demand {self.demand}>"


class SubscriptionManager:
    """Every subscription of the service."""

    def __init__(self, open_feed: FeedFactory, bounds: SubscriptionLimits, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._open = open_feed
        self._bounds = bounds
        self._clock = clock
        self._scopes: defaultdict[tuple[Hashable, SubscriptionKind], dict[str, ActiveSubscription]] = defaultdict(dict)
        self._due: defaultdict[int, _Due] = defaultdict(_Due)
        """By second: who is looked at then. Only the list that a subscription was put into last counts."""
        self._second = int(clock())
        """The second of the last sweep. Idle times are counted in such seconds: one number that all can share."""
        self.open_by_connection: Counter[str] = Counter()
        self._read_by: dict[tuple[str, str], set[ActiveSubscription]] = {}
        """By connection and reader: what ends when that one has gone."""

    def __iter__(self) -> Iterator[ActiveSubscription]:
        """Those that have not ended."""
        return (live for scope in self._scopes.values() for live in scope.values() if not live.is_closed)

    # commands

    def subscribe(self, signal: Subscribe, peer: Subscriber) -> None:
        """Open a subscription and say so; whatever is wrong with its query is told at the first request."""
        connection = peer.reply.connection_id
        if self.open_by_connection[connection] >= self._bounds.max_per_connection:
            entity, fault = signal.query.entity, self._limit_fault(signal.kind)
            group = entity.type.group if entity is not None else "things"
            peer.reply.post(ErrorResponse(entity, group, fault, signal.headers))
            return
        scope = self._scopes[peer.scope, signal.kind]
        key = signal.key or new_subscription_id()
        if (former := scope.get(key)) is not None and not former.is_closed:
            self._cancel(former)
        live = scope[key] = ActiveSubscription(signal, key, peer, self._second)
        self.open_by_connection[connection] += 1
        self._lead(live, peer)
        if not peer.has_session:
            self._schedule(live, self._bounds.idle_timeout)
        peer.reply.post(Created(live.kind, key, live.entity, signal.headers))
        try:
            feed = self._open(signal, peer.subjects)
        except StoreError:
            log.exception("a feed could not be opened", **_about(live))
            feed = INTERNAL_ERROR
        if isinstance(feed, Fault):
            self._send(live, live.fail(feed))
        elif feed is NOTHING:
            self._send(live, live.finish())
        else:
            live.feed = feed
            self._start(live)

    def open_feed(self, signal: Subscribe, subjects: tuple[str, ...]) -> Feed | Fault:
        """The feed of a subscribe for a desk that makes another one of it. Raises StoreError."""
        return self._open(signal, subjects)

    def request(self, signal: Request, peer: Subscriber) -> None:
        """Add demand, or answer why it cannot be added."""
        if (live := self._find(signal, peer)) is None:
            return
        if live.is_closed:
            (ended,) = live.request(signal.demand)
            assert not isinstance(ended, ElementsEmitted)
            peer.reply.post(
                Failed(live.kind, live.key, live.entity, signal.headers, ended.reason or EndReason.CANCELLED)
            )
            return
        self._touch(live, signal.headers, peer)
        self._send(live, live.request(signal.demand))
        self._start(live)

    def cancel(self, signal: Cancel, peer: Subscriber) -> None:
        """End a subscription without an answer."""
        if (live := self._find(signal, peer)) is not None and not live.is_closed:
            self._cancel(live)

    # lifetimes

    def idle(self, live: ActiveSubscription) -> int:
        """For how many seconds nothing has happened to a subscription. Elements that wait for a broker happen to it."""
        return 0 if live.pump is not None else self._second - live.touched

    def revoke(self, live: ActiveSubscription, fault: Fault) -> None:
        """An operator ends a subscription; its client is sent `failed`."""
        self._send(live, live.revoke(fault))

    def leave(self, connection_id: str, reader: str) -> None:
        """Whoever read the answers at this address has gone: what nobody else has taken up ends without a word."""
        for live in list(self._read_by.get((connection_id, reader), ())):
            self._cancel(live)

    def sweep(self) -> None:
        """End what has been idle for too long, forget what ended long enough ago. Call it about once a second."""
        former, self._second = self._second, int(self._clock())
        for second in range(former + 1, self._second + 1):
            due = self._due.pop(second, None)
            # The end of one may be that of others, which leave the list meanwhile.
            for live in tuple(due or ()):
                if live.due is due:
                    live.due = None
                    self._look_at(live, self._second)

    def fail_entity(self, entity: EntityId, fault: Fault) -> int:
        """There is nothing more of this entity: its subscriptions fail; how many did."""
        failed = [live for live in self if live.entity == entity]
        for live in failed:
            self._send(live, live.fail(fault))
        return len(failed)

    def abort(self, kind: SubscriptionKind) -> None:
        """The service stops: those of a kind that have been requested from are told so."""
        for live in list(self):
            if live.kind is kind and live.state is SubscriptionState.FLOWING:
                self._send(live, live.revoke(EndReason.ABORTED))

    def close_connection(self, connection_id: str) -> None:
        """The connection is closed or deleted: its subscriptions end without a word."""
        for (scope, kind), lives in list(self._scopes.items()):
            for live in [live for live in lives.values() if live.connection_id == connection_id]:
                if not live.is_closed:
                    self._cancel(live)
                if live.pump is not None:
                    # It may wait for a link that never comes.
                    live.pump.cancel()
                self._forget(live, scope, kind)

    def _look_at(self, live: ActiveSubscription, now: int) -> None:
        if live.is_closed:
            self._forget(live, live.peer.scope, live.kind)
        elif live.pump is not None:
            # Elements are on their way, or wait for a broker that is away: that is no lack of interaction.
            live.touched = now
            self._schedule(live, self._bounds.idle_timeout)
        elif (left := live.touched + self._bounds.idle_timeout - now) > 0:
            self._schedule(live, left)
        else:
            self._send(live, live.expire())

    def _schedule(self, live: ActiveSubscription, seconds: float) -> None:
        former, live.due = live.due, self._due[self._second + math.ceil(seconds) + 1]
        live.due.append(live)
        if former is not None:
            former.leave()

    def _forget(self, live: ActiveSubscription, scope: Hashable, kind: SubscriptionKind) -> None:
        lives = self._scopes.get((scope, kind))
        if lives is not None and lives.get(live.key) is live:
            del lives[live.key]
            if not lives:
                del self._scopes[scope, kind]

    def _touch(self, live: ActiveSubscription, headers: Headers, peer: Subscriber) -> None:
        live.headers, live.touched = encode(headers), self._second
        if peer is not live.peer:
            self._lead(live, peer)

    def _lead(self, live: ActiveSubscription, peer: Subscriber) -> None:
        """The answers go to this peer from now on."""
        self._unread(live)
        live.peer = peer
        if peer.reader is not None:
            self._read_by.setdefault((live.connection_id, peer.reader), set()).add(live)

    def _unread(self, live: ActiveSubscription) -> None:
        """Nobody's going ends it any more."""
        if live.peer.reader is None:
            return
        place = live.connection_id, live.peer.reader
        if (read := self._read_by.get(place)) is not None:
            read.discard(live)
            if not read:
                del self._read_by[place]

    def _find(self, signal: Request | Cancel, peer: Subscriber) -> ActiveSubscription | None:
        """The subscription that is meant. Answers `not found` itself where there is none for this peer."""
        live = self._scopes.get((peer.scope, signal.kind), {}).get(signal.key)
        if live is not None and not set(live.subjects).isdisjoint(peer.subjects):
            return live
        peer.reply.post(Failed(signal.kind, signal.key, signal.entity, signal.headers, EndReason.NOT_FOUND))
        return None

    def _limit_fault(self, kind: SubscriptionKind) -> Fault:
        return Fault(
            429,
            "thing-search:subscription.limit" if kind is SubscriptionKind.SEARCH else "streaming.subscription.limit",
            f"This connection has {self._bounds.max_per_connection} open subscriptions, the most it may have.",
            "Cancel subscriptions that are no longer needed, or let them end.",
        )

    # elements

    def _start(self, live: ActiveSubscription) -> None:
        if live.wanted and live.pump is None and live.feed is not None:
            live.pump = asyncio.get_running_loop().create_task(self._run(live))

    async def _run(self, live: ActiveSubscription) -> None:
        then = PageEnd.MORE
        try:
            then = await self._pump(live)
        except FeedFailed as error:
            log.warning("a feed ended early", reason=str(error), **_about(live))
            self._send(live, live.fail(error.fault))
        except HistoryUnavailable as error:
            log.error("a history is not there", reason=str(error), **_about(live))
            self._send(live, live.fail(error.fault))
        except Exception:
            log.exception("a feed failed", **_about(live))
            self._send(live, live.fail(INTERNAL_ERROR))
        finally:
            live.pump = live.posting = None
            live.touched = self._second
        if then is PageEnd.WAIT and live.feed is not None:
            live.feed.wake(lambda: self._start(live))

    async def _pump(self, live: ActiveSubscription) -> PageEnd:
        """Draw and send pages while there is demand; the next one when the broker has taken the last one."""
        while live.wanted and (feed := live.feed) is not None:
            limit = min(live.wanted, max(self._bounds.page_items, live.peer.page_items))
            page = await feed.page(live.position, limit, self._bounds.page_bytes)
            if live.is_closed:
                break
            live.position, then = page.position, page.then
            await self._send_in_turns(live, page.elements)
            # Until the next page has come this one takes no room.
            del page
            if live.is_closed:
                break
            if then is PageEnd.END:
                if live.posting is not None:
                    # An element that the broker refuses leaves a gap, and there must be no `complete` behind one.
                    await live.posting.over()
                if not live.is_closed:
                    self._send(live, live.finish())
                continue
            if live.posting is not None:
                await live.posting.taken()
            if then is PageEnd.WAIT:
                return PageEnd.WAIT
            await asyncio.sleep(0)
        return PageEnd.MORE

    async def _send_in_turns(self, live: ActiveSubscription, elements: Sequence[Any]) -> None:
        """Send a page in parts, so that other subscriptions, and the brokers' confirms, get their turn in between."""
        at_once = live.peer.at_once
        live.posting = self._send(live, live.offer(elements[:at_once]))
        for start in range(at_once, len(elements), at_once):
            if live.posting is not None:
                await live.posting.taken()
            await asyncio.sleep(0)
            if live.is_closed:
                return
            live.posting = self._send(live, live.offer(elements[start : start + at_once]))

    def _send(self, live: ActiveSubscription, outputs: Sequence[Output]) -> PendingPublish | None:
        """Turn what the engine decided into signals with the headers of the latest command."""
        posting = None
        for output in outputs:
            headers = decode(live.headers)
            if isinstance(output, ElementsEmitted):
                subscribed = decode(live.subscribed)
                posting = live.peer.reply.post(
                    Next(live.kind, live.key, live.entity, headers, output.elements, subscribed),
                    partial(self._sent, live),
                )
            else:
                if output.reason is None:
                    live.peer.reply.post(Complete(live.kind, live.key, live.entity, headers))
                else:
                    self._withdraw(live)
                    live.peer.reply.post(Failed(live.kind, live.key, live.entity, headers, output.reason))
                self._retire(live)
        return posting

    def _sent(self, live: ActiveSubscription, error: ConnectivityError | None) -> None:
        """Elements that the broker refused leave a gap: nothing may follow them but the failure."""
        if error is not None and not live.is_closed:
            fault = error.fault if isinstance(error, PublishFailed) else INTERNAL_ERROR
            self._send(live, live.fail(fault))

    def _cancel(self, live: ActiveSubscription) -> None:
        live.cancel()
        self._withdraw(live)
        self._retire(live)

    def _withdraw(self, live: ActiveSubscription) -> None:
        """Elements that the broker has not taken yet are not sent any more."""
        if live.posting is not None:
            live.posting.withdrawn = True

    def _retire(self, live: ActiveSubscription) -> None:
        """Let go of everything but what answers late commands during the after-life."""
        if live.feed is not None:
            live.feed.close()
            live.feed = None
        self.open_by_connection[live.connection_id] -= 1
        self._unread(live)
        if live.peer.is_told_once:
            self._forget(live, live.peer.scope, live.kind)
        else:
            self._schedule(live, self._bounds.after_life)


def _about(live: ActiveSubscription) -> dict[str, Any]:
    """What log lines say about a subscription and the conversation that it belongs to."""
    entity = str(live.entity) if live.entity is not None else None
    return {"connection": live.connection_id, "entity": entity, **log_context(decode(live.headers))}

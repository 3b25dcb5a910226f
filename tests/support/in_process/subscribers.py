"""Subscribers of one lamp over each wire protocol, and directly at the subscription manager.

    setup = await AllProtocolsSetup.filled(monkeypatch, revisions=10)
    subscriber = await new_subscriber(setup, "ReactiveStreamsIO").subscribe(demand=3)
    await subscriber.request(2)
    subscriber.elements

Subscribers of a search receive all lamps, one by one, with `attributes/n` in place of the revision. All have the same
interface, so that one test checks a rule of reactive streams for all of them. The Streamr protocol has no demand: a
confirm of the broker requests the next message, so messages wait until `request`, and the first demand is the session's
window.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar, NamedTuple, Self

from connectivity.sessions.streamr import live_subscription, resend
from connectivity.subscriptions.feed import NOTHING, Feed
from connectivity.subscriptions.history_feed import HistoryFeed
from connectivity.subscriptions.manager import Subscriber
from connectivity.targets.outbox import PendingPublish
from connectivity.transports.base import Done
from mappings.errors import Fault
from mappings.ids import EntityId, EntityType
from mappings.model.signals import (
    Cancel,
    Complete,
    Created,
    EndReason,
    Failed,
    HistoryQuery,
    LiveQuery,
    Next,
    Outbound,
    Request,
    SessionQuery,
    Subscribe,
    SubscriptionKind,
)
from mappings.reactive_streams_io.decoder import Decoder
from mappings.reactive_streams_io.errors import read
from mappings.reactive_streams_io.frames import (
    CORE,
    CancelFrame,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnSubscribe,
    RequestFrame,
    ServerHello,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import EndpointLimits
from mappings.streamr.frames import FrameType
from tests.support.in_process.all_protocols import KEY, OTHER_KEY, AllProtocolsSetup
from tests.support.in_process.service import LAMP, OWNER, pause, searching, streaming, until

UNBOUNDED = 2**63 - 1
_STATUSES = {EndReason.NOT_FOUND: 404, EndReason.IDLE: 408}


class Wanted(NamedTuple):
    """The subject of a subscription: a thing's history from a revision, or new events."""

    entity: EntityId
    first: int | None
    follow: bool


class SignalKind(Enum):
    BEGUN = "onSubscribe"
    ELEMENT = "onNext"
    COMPLETE = "onComplete"
    FAILED = "onError"


class SubscriberSignal(NamedTuple):
    """A signal to a subscriber: `number` is the revision of an element, or the status of a failure."""

    kind: SignalKind
    number: int = 0

    def __repr__(self) -> str:
        return f"{self.kind.value} {self.number}"


BEGUN, COMPLETE = SubscriberSignal(SignalKind.BEGUN), SubscriberSignal(SignalKind.COMPLETE)


def elements(*revisions: int) -> list[SubscriberSignal]:
    return [SubscriberSignal(SignalKind.ELEMENT, revision) for revision in revisions]


class ProtocolSubscriber(ABC):
    """A client of a wire protocol with one subscription."""

    protocol: ClassVar[str]
    says_demand: ClassVar[bool] = True
    """Whether the protocol has demand."""
    needs_request: ClassVar[bool] = False
    """Whether a subscription ends only after the first request."""
    knows_empty: ClassVar[bool] = True
    """Whether an empty subscription completes before the first request."""
    begins_refused: ClassVar[bool] = True
    """Whether a subscription begins even if it fails or completes immediately."""
    answers_late: ClassVar[bool] = False
    """Whether a request after the end gets a failure."""

    def __init__(self, setup: AllProtocolsSetup, address: str, number: int, subject: str) -> None:
        """`number` identifies the subscription, also on the wire if clients choose the name."""
        self.setup = setup
        self.address = address
        self.number = number
        self.subject = subject

    def __repr__(self) -> str:
        return f"<{self.protocol} subscriber at {self.address}, {self.reported[-5:]}>"

    async def subscribe(
        self, demand: int = 0, *, first: int | None = None, thing: str = "lamp-7", follow: bool = False
    ) -> Self:
        """Subscribe to the history of a lamp from this revision on, or to its new events."""
        self._subscribe(demand, Wanted(EntityId(EntityType.THING, "acme.site", thing), first, follow))
        await pause()
        return self

    async def request(self, demand: int) -> None:
        self.ask(demand)
        await pause()

    async def cancel(self) -> None:
        self._cancel()
        await pause()

    async def confirmed(self) -> None:
        """Let the broker confirm all messages, held and future ones."""
        await pause()

    async def exhausted(self) -> None:
        """Request elements until the end."""
        while not self.is_over:
            await self.request(3)

    async def has(self, number: int) -> None:
        """Wait for `number` elements."""
        await until(lambda: len(self.elements) >= number)

    async def ended(self) -> None:
        """Wait for the end."""
        await until(lambda: self.is_over)
        await pause()

    async def received(self, *signals: SubscriberSignal) -> None:
        """Wait for exactly these signals, from the beginning."""
        await until(lambda: len(self.reported) >= len(signals))
        await pause()
        assert self.reported == list(signals), f"{self.reported} is not {list(signals)}"

    def upon_each(self, on_message: Callable[[], None]) -> None:
        """Call `on_message` first in each call that brings a message, from now on."""
        former = self.setup.holding.received.get(self.address)

        def both() -> None:
            on_message()
            if former is not None:
                former()

        self.setup.holding.received[self.address] = both

    def request_one_upon_each(self) -> None:
        """From now on, request one more element within the call that brings one."""
        seen = 0

        def on_message() -> None:
            nonlocal seen
            new, seen = len(self.elements) - seen, len(self.elements)
            for _ in range(new):
                self.ask(1)

        self.upon_each(on_message)

    async def refused(self, demand: int) -> Self:
        """Subscribe to something that the service refuses to a stranger."""
        return await self.subscribe(demand)

    @property
    def is_over(self) -> bool:
        return any(each.kind in (SignalKind.COMPLETE, SignalKind.FAILED) for each in self.reported)

    @property
    def orders(self) -> set[str | None]:
        """The ordering keys of its messages."""
        return {each.order for each in self.setup.holding.by_address[self.address]}

    @property
    @abstractmethod
    def reported(self) -> list[SubscriberSignal]:
        """The signals so far."""

    @property
    def elements(self) -> list[int]:
        """The revisions of the received elements."""
        return [each.number for each in self.reported if each.kind is SignalKind.ELEMENT]

    @property
    def kinds(self) -> list[SignalKind]:
        """The kinds of the signals so far, without repetitions in a row."""
        kinds = [each.kind for each in self.reported]
        return [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] is not kind]

    @abstractmethod
    def _subscribe(self, demand: int, wanted: Wanted) -> None: ...

    @abstractmethod
    def ask(self, demand: int) -> None:
        """Send a request without waiting."""

    @abstractmethod
    def _cancel(self) -> None: ...

    @abstractmethod
    def use_subscription_of(self, other: ProtocolSubscriber) -> None:
        """Request and cancel the subscription of another client, under its name."""

    def _say(self, payload: bytes) -> None:
        """Send one message of this client."""
        source = next(
            index
            for index, source in enumerate(self.setup.connection.sources)
            if source.addresses == (f"{self.protocol}/{self.subject}",)
        )
        self.setup.deliver(payload, source=source, reply_to=self.address)

    @property
    def _payloads(self) -> list[bytes]:
        return [each.envelope.payload for each in self.setup.holding.by_address[self.address]]


class Engine(ProtocolSubscriber):
    """A subscriber that calls the subscription manager directly."""

    protocol = "engine"
    answers_late = True

    def __init__(self, setup: AllProtocolsSetup, address: str, number: int, subject: str) -> None:
        super().__init__(setup, address, number, subject)
        self.connection_id = setup.connection.id
        self.terminal_needs_request = False
        self._peer = Subscriber(self, (subject,), address, has_session=True)
        self._kind = SubscriptionKind.HISTORY
        self._signals: list[SubscriberSignal] = []

    def post(self, signal: Outbound, ended: Done | None = None) -> PendingPublish:
        match signal:
            case Created():
                self._signals.append(BEGUN)
            case Next():
                self._signals += elements(*(event.revision for event in signal.elements))
            case Complete():
                self._signals.append(COMPLETE)
            case Failed(reason=Fault(status)):
                self._signals.append(SubscriberSignal(SignalKind.FAILED, status))
            case Failed(reason=EndReason() as ending):
                self._signals.append(SubscriberSignal(SignalKind.FAILED, _STATUSES.get(ending, 400)))
        posting = PendingPublish(1, ended)
        posting.take()
        posting.confirm(None)
        if (on_message := self.setup.holding.received.get(self.address)) is not None:
            on_message()
        return posting

    @property
    def reported(self) -> list[SubscriberSignal]:
        return list(self._signals)

    def _subscribe(self, demand: int, wanted: Wanted) -> None:
        self._kind = SubscriptionKind.LIVE if wanted.follow else SubscriptionKind.HISTORY
        query = LiveQuery(wanted.entity) if wanted.follow else HistoryQuery(wanted.entity, wanted.first or 0)

        def found() -> Feed | Fault:
            feed = self.setup.streams.open_feed(Subscribe(self._kind, query, {}), (self.subject,))
            return NOTHING if isinstance(feed, HistoryFeed) and feed.is_empty else feed

        asked = SessionQuery(found, wanted.entity)
        self.setup.streams.subscribe(Subscribe(self._kind, asked, {}, str(self.number), demand), self._peer)

    def ask(self, demand: int) -> None:
        self.setup.streams.request(Request(self._kind, str(self.number), demand, {}), self._peer)

    def _cancel(self) -> None:
        self.setup.streams.cancel(Cancel(self._kind, str(self.number), {}), self._peer)

    def use_subscription_of(self, other: ProtocolSubscriber) -> None:
        for peer in (self._peer, Subscriber(self, (self.subject,), other.address)):
            self.setup.streams.request(Request(self._kind, str(other.number), 3, {}), peer)
            self.setup.streams.cancel(Cancel(self._kind, str(other.number), {}), peer)


class Ditto(ProtocolSubscriber):
    """Streaming subscriptions of the Ditto protocol, which has none to new events."""

    protocol = "Ditto"
    say = staticmethod(streaming)
    needs_request = True
    answers_late = True

    @property
    def reported(self) -> list[SubscriberSignal]:
        return [
            self._read(message["topic"].rpartition("/")[2], message["value"])
            for message in map(json.loads, self._payloads)
            if message["headers"]["correlation-id"] == str(self.number)
        ]

    def _subscribe(self, demand: int, wanted: Wanted) -> None:
        assert not wanted.follow
        query = {"fromHistoricalRevision": wanted.first or 0}
        name = wanted.entity.name
        self._say(streaming("subscribeForPersistedEvents", query, name=name, **self._headers))
        if demand:
            self.ask(demand)

    @property
    def _headers(self) -> dict[str, str]:
        return {"reply_to": self.address, "correlation_id": str(self.number)}

    def ask(self, demand: int) -> None:
        self._ask(self.id, demand)

    def _cancel(self) -> None:
        self._leave(self.id)

    def use_subscription_of(self, other: ProtocolSubscriber) -> None:
        assert isinstance(other, Ditto)
        self._ask(other.id, 3)
        self._leave(other.id)

    @property
    def orders(self) -> set[str | None]:
        """The ordering keys of its own subscription: others at the address may overtake it."""
        own = self.id.encode()
        return {each.order for each in self.setup.holding.by_address[self.address] if own in each.envelope.payload}

    def _ask(self, id: str, demand: int) -> None:
        self._say(self.say("request", {"subscriptionId": id, "demand": demand}, **self._headers))

    def _leave(self, id: str) -> None:
        self._say(self.say("cancel", {"subscriptionId": id}, **self._headers))

    @property
    def id(self) -> str:
        messages = map(json.loads, self._payloads)
        (created,) = [
            message
            for message in messages
            if message["topic"].endswith("/created") and message["headers"]["correlation-id"] == str(self.number)
        ]
        return str(created["value"]["subscriptionId"])

    def _read(self, action: str, value: dict[str, Any]) -> SubscriberSignal:
        match action:
            case "created":
                return BEGUN
            case "next":
                return SubscriberSignal(SignalKind.ELEMENT, self._position(value))
            case "complete":
                return COMPLETE
            case _:
                return SubscriberSignal(SignalKind.FAILED, (value.get("error") or value)["status"])

    def _position(self, value: dict[str, Any]) -> int:
        return int(value["item"]["revision"])


class DittoSearch(Ditto):
    """Search subscriptions of the Ditto protocol, with one thing per page."""

    say = staticmethod(searching)

    async def refused(self, demand: int) -> Self:
        """Subscribe with an invalid filter, because no client is refused a valid search."""
        return await self.subscribe(demand, thing="nothing")

    def _subscribe(self, demand: int, wanted: Wanted) -> None:
        query = {"filter": _filter(wanted), "options": "size(1),sort(+attributes/n)"}
        self._say(searching("subscribe", query, **self._headers))
        if demand:
            self.ask(demand)

    def _position(self, value: dict[str, Any]) -> int:
        (item,) = value["items"]
        return int(item["attributes"]["n"])


def _filter(wanted: Wanted) -> str:
    return "eq(" if wanted.entity != LAMP else f"ge(attributes/n,{wanted.first or 0})"


class Streamr(ProtocolSubscriber):
    """Resends and subscriptions of Streamr: the events of the lamp as messages of a stream."""

    protocol = "Streamr"
    says_demand = False
    begins_refused = False

    @property
    def reported(self) -> list[SubscriberSignal]:
        frames = [frame for frame in map(json.loads, self._payloads) if self._is_ours(frame)]
        return [each for frame in frames for each in _streamr(FrameType(frame[1]), frame[3])]

    def _is_ours(self, frame: list[Any]) -> bool:
        """Return whether a frame belongs to this subscription; frames of a resend name its `sub`."""
        sub = frame[2] or frame[3].get("sub", "") if isinstance(frame[3], dict) else frame[2]
        return sub in ("", str(self.number))

    def _subscribe(self, demand: int, wanted: Wanted) -> None:
        self.setup.holding.held.setdefault(self.address, [])
        self.setup.patch.setattr(live_subscription if wanted.follow else resend, "WINDOW", demand)
        key = KEY if self.subject == OWNER else OTHER_KEY
        request: dict[str, Any] = {"type": "subscribe", "stream": f"things/{wanted.entity}", "authKey": key}
        if not wanted.follow:
            request |= {"type": "resend", "sub": str(self.number), "resend_from": wanted.first or 0}
        self._leave = {"type": "unsubscribe", "stream": request["stream"]} if wanted.follow else {"type": "disconnect"}
        self._say(json.dumps(request).encode())

    def ask(self, demand: int) -> None:
        self.setup.holding.confirm_at(self.address)

    async def confirmed(self) -> None:
        self.setup.holding.hold_no_more(self.address)
        await super().confirmed()

    async def ended(self) -> None:
        await self.confirmed()
        await super().ended()

    def _cancel(self) -> None:
        """Unsubscribe, or disconnect for a resend, which ends only with its session."""
        self._say(json.dumps(self._leave).encode())

    def use_subscription_of(self, other: ProtocolSubscriber) -> None:
        """Send requests in the own session, because sessions are identified by address."""
        self.setup.holding.held.setdefault(self.address, [])
        for request in ({"type": "unsubscribe"}, {"type": "resend", "sub": str(other.number), "resend_all": True}):
            self._say(json.dumps({"stream": f"things/{LAMP}", "authKey": OTHER_KEY, **request}).encode())
        self._say(b'{"type":"disconnect"}')


def _streamr(type: FrameType, payload: Any) -> list[SubscriberSignal]:
    match type:
        case FrameType.SUBSCRIBED | FrameType.RESENDING:
            return [BEGUN]
        case FrameType.BROADCAST | FrameType.UNICAST:
            return elements(payload[5])
        case FrameType.RESENT | FrameType.NO_RESEND:
            return [COMPLETE]
        case FrameType.UNSUBSCRIBED:
            return []
        case FrameType.ERROR:
            return [SubscriberSignal(SignalKind.FAILED, payload["status"])]


class Rsio(ProtocolSubscriber):
    """Streams of reactive-streams-io."""

    protocol = "ReactiveStreamsIO"

    @property
    def reported(self) -> list[SubscriberSignal]:
        signals: list[SubscriberSignal] = []
        for frame in self._frames:
            match frame:
                case OnSubscribe(self.number):
                    signals.append(BEGUN)
                case OnNext(self.number, element):
                    signals += elements(self._position(json.loads(element)))
                case OnComplete(self.number):
                    signals.append(COMPLETE)
                case OnError(self.number, error):
                    signals.append(SubscriberSignal(SignalKind.FAILED, read(error).status))
                case Goodbye(reason):
                    raise AssertionError(f"a goodbye: {reason}")
        return signals

    @property
    def _frames(self) -> list[Frame]:
        decoder = Decoder(EndpointLimits(), CORE | {0x02}, 0x02, {})
        return [frame for payload in self._payloads for frame in decoder.feed(payload)]

    def _subscribe(self, demand: int, wanted: Wanted) -> None:
        asked = encode(SubscribeFrame(self._publisher(wanted), self.number, demand))
        is_greeted = any(isinstance(frame, ServerHello) for frame in self._frames)
        self._say(asked if is_greeted else bytes.fromhex("01 00 00") + asked)

    def ask(self, demand: int) -> None:
        self._say(encode(RequestFrame(self.number, demand)))

    def _cancel(self) -> None:
        self._say(encode(CancelFrame(self.number)))

    def use_subscription_of(self, other: ProtocolSubscriber) -> None:
        self._say(bytes.fromhex("01 00 00") + encode(RequestFrame(other.number, 3)) + encode(CancelFrame(other.number)))

    def _publisher(self, wanted: Wanted) -> str:
        query = "" if wanted.first is None else f"?from={wanted.first}"
        return f"things/{wanted.entity}/{'events' if wanted.follow else 'history'}{query}"

    def _position(self, element: dict[str, Any]) -> int:
        return int(element["revision"])


class RsioSearch(Rsio):
    """Searches of reactive-streams-io whose elements are things, read on request, two at a time."""

    knows_empty = False

    async def refused(self, demand: int) -> Self:
        """Subscribe with an invalid filter, because no client is refused a valid search."""
        return await self.subscribe(demand, thing="nothing")

    def _publisher(self, wanted: Wanted) -> str:
        return f"things/search?filter={_filter(wanted)}&options=size(2),sort(%2Battributes/n)&unit=thing"

    def _position(self, element: dict[str, Any]) -> int:
        return int(element["attributes"]["n"])


PROTOCOLS: dict[str, type[ProtocolSubscriber]] = {
    "engine": Engine,
    "Ditto": Ditto,
    "Ditto search": DittoSearch,
    "Streamr": Streamr,
    "ReactiveStreamsIO": Rsio,
    "ReactiveStreamsIO search": RsioSearch,
}


def new_subscriber(
    setup: AllProtocolsSetup, protocol: str, beside: ProtocolSubscriber | None = None, subject: str = OWNER
) -> ProtocolSubscriber:
    """Return a new subscriber, at its own address or in the session of `beside`."""
    number = setup.next_number()
    address = beside.address if beside is not None else f"at-{number}"
    return PROTOCOLS[protocol](setup, address, number, subject)

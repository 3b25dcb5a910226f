"""Two endpoints over faulty wires, and the invariants of both.

Each of them subscribes to the other, requests more, cancels, waits, loses its transport and reconnects with its ticket.
Its output must be frames that a strict reader accepts, it ends with a documented goodbye and no output after it, each
stream ends once, its state stays below the limits, and no state remains at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pytest
from hypothesis import strategies as st

from mappings.errors import EncodeError, ProtocolError
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.endpoint import EndpointRole, EndpointState
from mappings.reactive_streams_io.events import (
    Cancelled,
    Closed,
    Completed,
    ElementsReceived,
    EndpointEvent,
    Interrupted,
    Resumed,
    StreamAccepted,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    Extension,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPacked,
    OnNextPart,
    OnSubscribe,
    RequestFrame,
    SubscribeFrame,
)
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.clock import Clock
from tests.support.reactive_streams_io.conversation import EndpointClient, Feed
from tests.support.reactive_streams_io.examples import decoder
from tests.support.reactive_streams_io.faulty_wire import Wire, WireFault, sizes, slips

GOODBYES = (errors.OK, "protocol error:", "unsupported version", errors.IDLE, errors.SHUTDOWN, errors.RESUMED_ELSEWHERE)
"""The prefixes of the reasons of a goodbye."""

LIMITS = EndpointLimits(
    frame=4096,
    element=8192,
    incomplete_elements=16_384,
    backlog=4096,
    copies=4096,
    window=16,
    subscriptions=4,
    split_above=300,
    part=200,
    batch=700,
)
"""Small limits, which a conversation of a few dozen frames reaches."""

BOUND = LIMITS.copies + 3 * LIMITS.backlog + LIMITS.incomplete_elements
"""The maximum state for a peer without its requested elements, in bytes."""

NAMES = [
    *["tck/range?n=5", "tck/never", "tck/fail?after=2", "tck/fixed?n=30&size=2"] * 2,
    "tck/fixed?n=30&size=2",
    "tck/big?bytes=1500",
    "tck/big?bytes=9000",
    "tck/range?n=0",
    "tck/x",
    "a//b",
    "",
]
DEMANDS = (1, 2, 3, 7, 40, 0, UNBOUNDED)
WAITS = (1.0, 6.0, 11.0, 31.0, 61.0, 95.0)
PAGES = 30
ROUNDS = 400


class Step(NamedTuple):
    """An action of one side, then up to `rounds` exchanges.

    `which` selects a stream or name, `much` a demand or time.
    """

    role: EndpointRole
    what: str
    which: int = 0
    much: int = 0
    rounds: int = ROUNDS


class Plan(NamedTuple):
    """A whole conversation: extensions, steps, faults of the wire in each direction, sizes of pieces."""

    extensions: frozenset[Extension]
    steps: list[Step]
    to_server: list[WireFault]
    to_client: list[WireFault]
    sizes: list[int]
    """Empty for a transport with messages."""


ACTS = (*("subscribe", "request") * 5, "cancel", "cancel", "wait", "wait", "lose", "lose", "part")
steps = st.builds(
    Step,
    st.sampled_from(EndpointRole),
    st.sampled_from(ACTS),
    st.integers(0, 15),
    st.integers(0, 6),
    st.sampled_from((ROUNDS, 0, 1, 2)),
)
plans = st.builds(
    Plan,
    st.frozensets(st.sampled_from(Extension)),
    st.lists(steps, min_size=5, max_size=18),
    slips,
    slips,
    st.one_of(st.just([]), sizes),
)


_OVER = (EndpointState.CLOSING, EndpointState.CLOSED)


def _is_reused(stream: int, events: Sequence[EndpointEvent]) -> bool:
    """Return whether a new session, which numbers its streams from 1 again, has reused this number."""
    return any(isinstance(event, SubscribeReceived) and event.stream == stream for event in events)


class SentFrame(NamedTuple):
    """A frame of a session, and the element sizes of its streams after this frame."""

    frame: Frame
    sizes: dict[int, int]


_NUMBERED = (
    *(SubscribeFrame, RequestFrame, CancelFrame, OnSubscribe, OnComplete, OnError),
    *(OnNext, OnNextPacked, OnNextPart, OnNextLastPart),
)
"""The frames that a session counts, and sends again after it was resumed."""


class Side(EndpointClient):
    """One end of one transport.

    `feeds_of` has the feeds of all sessions of its role, `ledger` its subscriptions.
    """

    def __init__(
        self,
        role: EndpointRole,
        clock: Clock,
        feeds_of: dict[int, dict[int, Feed]],
        ledger: StreamLedger,
        **options: object,
    ) -> None:
        super().__init__(role, clock, PAGES, **options)
        self.feeds_of = feeds_of
        self.ledger = ledger
        self.key = self.sent_in = self.endpoint.session.key
        """The key of the present session, and of that whose frames it has sent."""
        self.feeds = feeds_of.setdefault(self.key, {})
        self.sent_messages: list[bytes] = []
        self.is_cut = False

    def messages(self) -> list[bytes]:
        messages = super().messages()
        self.sent_messages += messages
        return messages

    def react(self, events: list[EndpointEvent]) -> None:
        for position, event in enumerate(events):
            if isinstance(event, Resumed):
                self.key = event.session
                self.feeds = self.feeds_of[self.key]
            super().react([event])
            self.ledger.note(self.key, event)
            if isinstance(event, Cancelled) and not _is_reused(event.stream, events[position:]):
                assert event.stream not in self.endpoint.session.by_stream
        self.key = self.endpoint.session.key
        self.feeds = self.feeds_of.setdefault(self.key, self.feeds)
        if self.endpoint.state not in _OVER:
            self.sent_in = self.key

    def lose(self) -> None:
        self.is_cut = True
        self.react(self.endpoint.lose(self.clock.now()))

    def ask(self, name: str, demand: int) -> None:
        session = self.endpoint.session
        if self.endpoint.state in _OVER or len(session.subscribing.streams) == LIMITS.subscriptions:
            with pytest.raises(EncodeError, match="found"):
                self.endpoint.subscribe(name, demand)
        else:
            self.ledger.requests(session.key, self.endpoint.subscribe(name, demand))

    def streams(self) -> list[int]:
        return self.endpoint.session.subscribing.streams

    def check(self, before: list[SentFrame]) -> list[SentFrame]:
        """Check that the output is whole frames, with a documented goodbye at the end.

        In a resumed session, it sends again what follows one of the frames `before`, and then others. Returns all frames of
        the session.
        """
        found, sent = list[Frame](), before
        for position in range(len(before), -1, -1):
            with contextlib.suppress(ProtocolError):
                found, following = self._frames(before[position - 1].sizes if position else {})
                again = before[position:]
                if [it.frame for it in following[: len(again)]] == [it.frame for it in again[: len(following)]]:
                    sent = before[:position] + following + again[len(following) :]
                    break
        else:
            pytest.fail(f"found other frames than those of the session {before}: {self.sent_messages}")
        goodbyes = [frame for frame in found if isinstance(frame, Goodbye)]
        assert len(goodbyes) <= 1
        assert found[len(found) - len(goodbyes) :] == goodbyes
        for goodbye in goodbyes:
            assert goodbye.reason.startswith(GOODBYES), goodbye
        assert len(self.reported(Closed)) + len(self.reported(Interrupted)) <= 1
        if self.endpoint.is_closed and not self.is_cut and not self.reported(Interrupted):
            assert goodbyes
        return sent

    def _frames(self, sizes: Mapping[int, int]) -> tuple[list[Frame], list[SentFrame]]:
        """Return all frames of the output, and those of the session. Raises ProtocolError."""
        reader = decoder(dict(sizes), EndpointLimits())
        found, sent = list[Frame](), list[SentFrame]()
        for frame in reader.feed(b"".join(self.sent_messages)):
            found.append(frame)
            if isinstance(frame, _NUMBERED):
                sent.append(SentFrame(frame, dict(reader.sizes)))
        assert not reader.waiting
        return found, sent

    def is_bounded(self) -> bool:
        session = self.endpoint.session
        kept = session.held_bytes - sum(each.waiting_bytes for each in session.publishing.values())
        return kept <= BOUND and len(session.publishing) <= LIMITS.subscriptions


class StreamLedger:
    """The subscriptions of a role in all sessions; checks that each begins before elements and ends once."""

    def __init__(self) -> None:
        self.open: set[tuple[int, int]] = set()
        self.begun: set[tuple[int, int]] = set()

    def requests(self, session: int, stream: int) -> None:
        self.open.add((session, stream))

    def note(self, session: int, event: EndpointEvent) -> None:
        match event:
            case StreamAccepted(stream):
                assert (session, stream) in self.open
                assert (session, stream) not in self.begun
                self.begun.add((session, stream))
            case ElementsReceived(stream):
                assert (session, stream) in self.open & self.begun
            case Completed(stream) | StreamFailed(stream):
                self.over(session, stream)

    def over(self, session: int, stream: int) -> None:
        assert (session, stream) in self.open
        self.open.discard((session, stream))


class Dialog:
    """A client and a server, with all their transports."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.clock = Clock()
        self.resumables = Resumables(LIMITS)
        self.wires = {
            EndpointRole.CLIENT: Wire(plan.to_server, plan.sizes),
            EndpointRole.SERVER: Wire(plan.to_client, plan.sizes),
        }
        self.feeds_of: dict[EndpointRole, dict[int, dict[int, Feed]]] = {role: {} for role in EndpointRole}
        self.ledgers = {role: StreamLedger() for role in EndpointRole}
        self.sides: list[Side] = []
        self.connect()

    def connect(self) -> None:
        """Open a new transport. A client with a ticket resumes its session."""
        client = self.sides and self.side(EndpointRole.CLIENT)
        ticket = client.endpoint.ticket() if client and client.reported(Interrupted) else None
        options = {"limits": LIMITS, "has_messages": not self.plan.sizes}
        wanted = {"extensions": self.plan.extensions, "ticket": ticket}
        for role, more in ((EndpointRole.CLIENT, wanted), (EndpointRole.SERVER, {"resumables": self.resumables})):
            side = Side(role, self.clock, self.feeds_of[role], self.ledgers[role], **options, **more)
            self.sides.append(side)

    def side(self, role: EndpointRole) -> Side:
        """Return the newest side of a role."""
        return next(side for side in reversed(self.sides) if side.endpoint.role is role)

    def do(self, step: Step) -> None:
        side = self.side(step.role)
        now = self.clock.now()
        demand = DEMANDS[step.much % len(DEMANDS)]
        streams = side.streams()
        match step.what:
            case "subscribe":
                side.ask(NAMES[step.which % len(NAMES)], demand)
            case "request" if streams and demand:
                side.endpoint.session.request(streams[step.which % len(streams)], demand)
            case "cancel" if streams:
                stream = streams[step.which % len(streams)]
                key = side.endpoint.session.key
                if side.endpoint.session.cancel(stream):
                    side.ledger.over(key, stream)
            case "wait":
                self.wait(WAITS[step.much % len(WAITS)])
            case "lose":
                self.side(EndpointRole.CLIENT).lose()
                if step.which % 3:
                    self.side(EndpointRole.SERVER).lose()
                self.connect()
            case "part":
                side.react(side.endpoint.close(now))

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for side in self.sides:
            side.react(side.endpoint.tick(self.clock.now()))
        self.expire()

    def expire(self) -> None:
        for session, events in self.resumables.expire(self.clock.now()):
            feeds = self.feeds_of[EndpointRole.SERVER][session.key]
            for event in events:
                self.ledgers[EndpointRole.SERVER].note(session.key, event)
                feeds.pop(event.stream, None)

    def exchange(self, rounds: int = ROUNDS) -> None:
        """Exchange frames until both sides are silent, or for `rounds` rounds."""
        for _ in range(rounds):
            messages = {role: self.side(role).messages() for role in EndpointRole}
            if not any(messages.values()):
                return
            for role, other in ((EndpointRole.CLIENT, EndpointRole.SERVER), (EndpointRole.SERVER, EndpointRole.CLIENT)):
                for piece in self.wires[role].carry(messages[role]):
                    self.receive(self.side(other), piece)
        assert rounds < ROUNDS, f"the exchange does not end: {self.sides}"

    def receive(self, side: Side, piece: bytes) -> None:
        was_closed = side.endpoint.is_closed
        side.react(side.endpoint.receive(piece, self.clock.now()))
        assert side.is_bounded()
        assert not was_closed or side.endpoint.is_closed

    def finish(self) -> None:
        """Close all sides for good."""
        for side in self.sides:
            side.messages()
            side.lose()
            side.react(side.endpoint.close(self.clock.now()))
            assert side.endpoint.is_closed
        client = self.side(EndpointRole.CLIENT)
        if (ticket := client.endpoint.ticket()) is not None:
            client.react([*ticket.give_up()])
        self.clock.advance(10_000)
        self.expire()

    def check(self) -> None:
        """Check the output and the remaining state."""
        for role in EndpointRole:
            sent: dict[int, list[SentFrame]] = {}
            for side in self.sides:
                if side.endpoint.role is role:
                    sent[side.sent_in] = side.check(sent.get(side.sent_in, []))
            assert self.ledgers[role].open == set()
            assert not any(self.feeds_of[role].values()), self.feeds_of
        assert not self.resumables._by_token
        assert not self.resumables._lost
        for side in self.sides:
            session = side.endpoint.session
            assert (session.held_bytes, session.by_stream, session.publishing, session.subscribing.streams) == (
                0,
                {},
                {},
                [],
            )


def run_plan(plan: Plan) -> Dialog:
    """Carry out a plan, and check all invariants."""
    dialog = Dialog(plan)
    dialog.exchange()
    for step in plan.steps:
        dialog.do(step)
        dialog.exchange(step.rounds)
    dialog.exchange()
    dialog.finish()
    dialog.check()
    return dialog


def plan(
    *steps: Step, to_server: Iterable[WireFault] = (), to_client: Iterable[WireFault] = (), sizes: Sequence[int] = ()
) -> Plan:
    """Return a plan with all extensions."""
    return Plan(frozenset(Extension), list(steps), list(to_server), list(to_client), list(sizes))

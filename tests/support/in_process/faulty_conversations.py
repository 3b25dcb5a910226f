"""A quay and clients in trouble at it: conversations over wires that make mistakes, one after the other at one desk.

Each conversation has visitors, whose endpoints speak as they should, wires that do not, a broker that refuses or stalls,
readers that go, and a well-behaved neighbour, who must get what he asked for. Behind each conversation nothing may be left
at the desk, so the next one finds it as the first one did.

with Harbour() as harbour:
    harbour.hold(plan)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple, Self
from zlib import crc32

from hypothesis import strategies as st
from structlog.testing import capture_logs

from connectivity.errors import PublishFailed
from connectivity.transports.base import ReaderStatus
from mappings.reactive_streams_io import errors
from mappings.reactive_streams_io.endpoint import EndpointRole, EndpointState
from mappings.reactive_streams_io.events import Interrupted
from mappings.reactive_streams_io.frames import Extension, Goodbye, Seq
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from tests.support.in_process.reactive_streams_io import HISTORY, H, Quay, source, subscribe
from tests.support.in_process.service import LAMP, pause, turn, until
from tests.support.reactive_streams_io.conversation import Party
from tests.support.reactive_streams_io.examples import decoder
from tests.support.reactive_streams_io.faulty_wire import Slip, Wire, slips

NAMES = [
    f"{HISTORY}?from=-5",
    f"{HISTORY}?from=-3&follow=true",
    f"{HISTORY}?from=-9&project=/attributes/on&pack=f64",
    f"things/{LAMP}/events",
    "things/search?unit=thing",
    "things/search?filter=eq(",
    "streams/tank/0",
    "streams/nowhere/0",
    "things/acme.site:none/history",
    "tck/range?n=50",
    "tck/never",
    "tck/fail?after=2",
    "tck/fixed?n=3000&size=3",
    "tck/big?bytes=70000",
    "tck/big?bytes=300000",
    "tck/x",
    "ingest/telemetry",
    "",
]
DEMANDS = (1, 2, 5, 20, 200, 0, UNBOUNDED)
WAITS = (1.0, 11.0, 31.0, 61.0, 95.0)
ELEMENT = 200_000
VISITORS = 2
ROUNDS = 300
WORN = 300
"""After so many conversations there is a new desk, since the lamp's past has become long."""

NEIGHBOUR = "02 00 03 01 02 03 81 01 00 82 01 01 31 82 01 01 32"


class Step(NamedTuple):
    """What one visitor does next, or what happens to it. Then all speak, `rounds` times at most."""

    visitor: int
    what: str
    which: int = 0
    much: int = 0
    rounds: int = ROUNDS


class Plan(NamedTuple):
    """A whole conversation; the wires' mistakes by visitor, each way."""

    extensions: frozenset[Extension]
    steps: list[Step]
    forth: list[list[Slip]]
    back: list[list[Slip]]


ACTS = (
    *("subscribe",) * 5,
    *("request",) * 3,
    "cancel",
    "cancel",
    "wait",
    "gone",
    "restart",
    "elsewhere",
    "turn",
    "turn",
    "refuse",
    "stall",
    "go on",
    "stranger",
    "part",
)
steps = st.builds(
    Step,
    st.integers(0, VISITORS - 1),
    st.sampled_from(ACTS),
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 6),
    st.sampled_from((ROUNDS, 0, 1, 2)),
)
wires = st.lists(slips, min_size=VISITORS, max_size=VISITORS)
plans = st.builds(
    Plan, st.frozensets(st.sampled_from(Extension)), st.lists(steps, min_size=5, max_size=20), wires, wires
)


class Visitor:
    """A client, at one address after the other."""

    def __init__(self, quay: Quay, name: str, extensions: frozenset[Extension], forth: Wire, back: Wire) -> None:
        self.quay = quay
        self.name = name
        self.extensions = extensions
        self.forth, self.back = forth, back
        self.places: list[str] = []
        self.party: Party
        self.come()

    def __repr__(self) -> str:
        return f"<Visitor {self.name} at {self.places[-1]}, {self.party}>"

    def come(self, ticket: Any = None, *, stays: bool = False) -> None:
        """A new client: at the same address, or at another one, with a session to go on with or without."""
        if not stays or not self.places:
            self.places.append(f"{self.name}/{len(self.places)}")
            self.heard = 0
        self.party = Party(
            EndpointRole.CLIENT,
            self.quay.clock,
            30,
            has_messages=True,
            extensions=self.extensions,
            ticket=ticket,
            limits=EndpointLimits(),
        )

    def speak(self) -> bool:
        said, place, former = self.party.messages(), self.places[-1], None
        for message in self.forth.carry(said):
            # Of what comes twice the broker marks some.
            again = message == former and len(message) % 2 == 1
            former = message
            self.quay.handle(
                self.quay.delivery(message, f"{place}-{crc32(message)}", redelivered=again, reply_to=place)
            )
        return bool(said)

    def listen(self) -> bool:
        messages = self.quay.messages(self.places[-1])
        said, self.heard = messages[self.heard :], len(messages)
        for message in self.back.carry(said):
            self.party.react(self.party.endpoint.receive(message, self.quay.clock.now()))
        return bool(said)

    def gone(self) -> None:
        self.quay.dispatcher.reader("site", self.places[-1], ReaderStatus.GONE)
        self.party.react(self.party.endpoint.lose(self.quay.clock.now()))


class Harbour:
    """A desk, and the loop that it runs in."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._quay: Quay | None = None
        self.held = 0
        self._faults: list[Any] = []

    def __enter__(self) -> Self:
        self._runner.__enter__()
        self._runner.get_loop().set_exception_handler(lambda _, context: self._faults.append(context))
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._close())
        self._runner.__exit__(None, None, None)

    def hold(self, plan: Plan) -> None:
        """A whole conversation. AssertionError where a promise is broken; then the desk is a new one."""
        self._runner.run(self._hold(plan))

    async def _close(self) -> None:
        if self._quay is not None:
            await self._quay.close()
            self._quay = None

    async def _hold(self, plan: Plan) -> None:
        if self._quay is None:
            self._quay = await Quay.filled(
                source(), source("in2", "acme:stranger"), revisions=4, options={"elementLimit": ELEMENT}
            )
        try:
            with capture_logs() as logs:
                await Conversation(self._quay, plan).hold()
            assert [each for each in logs if each["log_level"] not in ("debug", "info", "warning")] == []
            assert self._faults == []
        except BaseException:
            self._faults.clear()
            await self._close()
            raise
        self.held += 1
        if self.held % WORN == 0:
            await self._close()


class Conversation:
    """One plan at a quay that has no sessions."""

    def __init__(self, quay: Quay, plan: Plan) -> None:
        self.quay = quay
        self.plan = plan
        self.visitors = [
            Visitor(quay, f"c{number}", plan.extensions, Wire(plan.forth[number]), Wire(plan.back[number]))
            for number in range(VISITORS)
        ]
        self.waited = 0.0

    async def hold(self) -> None:
        quay = self.quay
        delivered = quay._number
        quay.say("well", H, subscribe("tck/range?n=4", 1, 2))
        await self.exchange()
        for step in self.plan.steps:
            await self.do(step)
            await self.exchange(step.rounds)
        quay.link.refuses = None
        self.go_on()
        await self.exchange()
        quay.say("well", "12 01 05")
        await quay.heard("well", f"{NEIGHBOUR} 82 01 01 33 82 01 01 34 86 01")
        quay.say("well", "03 00")
        await self.leave()
        self.check()
        assert len(quay.outcomes) == quay._number - delivered
        quay.forget()

    async def do(self, step: Step) -> None:
        quay, visitor = self.quay, self.visitors[step.visitor]
        endpoint = visitor.party.endpoint
        streams = endpoint.session.subscribing.streams
        demand = DEMANDS[step.much % len(DEMANDS)]
        match step.what:
            case "subscribe":
                if endpoint.state not in (EndpointState.CLOSING, EndpointState.CLOSED):
                    endpoint.subscribe(NAMES[step.which % len(NAMES)], demand)
            case "request" if streams and demand:
                endpoint.session.request(streams[step.which % len(streams)], demand)
            case "cancel" if streams:
                endpoint.session.cancel(streams[step.which % len(streams)])
            case "wait" if self.waited < 400:
                self.wait(WAITS[step.much % len(WAITS)])
            case "gone":
                visitor.gone()
                visitor.come(self._ticket(visitor))
            case "restart":
                visitor.come(stays=True)
            case "elsewhere":
                visitor.party.react(endpoint.lose(quay.clock.now()))
                visitor.come(self._ticket(visitor))
            case "turn":
                # A lane that waits for confirms holds the answer too.
                if quay.link.confirms and quay.link.refuses is None:
                    await quay.tell(turn(step.much))
            case "refuse":
                quay.link.refuses = PublishFailed("too large", status=413) if step.which % 2 else None
            case "stall":
                quay.link.confirms = False
            case "go on":
                self.go_on()
            case "stranger":
                quay.say(visitor.places[-1], "12 01 01" if step.which % 2 else H, source=1)
            case "part":
                visitor.party.react(endpoint.close(quay.clock.now()))

    def go_on(self) -> None:
        self.quay.link.confirms = True
        self.quay.link.confirm()

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        self.quay.clock.advance(seconds)
        self.quay.dispatcher.sweep()
        self.quay.streams.sweep()
        for visitor in self.visitors:
            visitor.party.react(visitor.party.endpoint.tick(self.quay.clock.now()))

    async def exchange(self, rounds: int = ROUNDS) -> None:
        """Carry what is said until everybody is silent, or for so many rounds."""
        for _ in range(rounds):
            spoken = [visitor.speak() for visitor in self.visitors]
            await pause()
            heard = [visitor.listen() for visitor in self.visitors]
            if not any((*spoken, *heard)):
                return
        assert rounds < ROUNDS, f"they do not come to an end: {self.visitors}"

    async def leave(self) -> None:
        """Everybody goes, and nobody comes back in time."""
        for visitor in self.visitors:
            for place in visitor.places:
                self.quay.dispatcher.reader("site", place, ReaderStatus.GONE)
        for _ in range(4):
            self.quay.clock.advance(700)
            self.quay.dispatcher.sweep()
            self.quay.streams.sweep()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    def check(self) -> None:
        """What was said is whole frames that end in documented goodbyes; and nothing is left."""
        for visitor in self.visitors:
            # A session that goes on elsewhere has begun its streams before.
            sizes = dict.fromkeys(range(1, 100), 0)
            for place in visitor.places:
                self._check_said(self.quay.messages(place), sizes)
        assert left(self.quay) == []

    def _check_said(self, messages: Sequence[bytes], sizes: dict[int, int]) -> None:
        for message in messages:
            reader = decoder(sizes)
            found = list(reader.feed(message))
            assert not reader.waiting
            assert len(message) <= EndpointLimits().batch or sum(not isinstance(frame, Seq) for frame in found) == 1
            for frame in found[:-1]:
                assert not isinstance(frame, Goodbye)
            if found and isinstance(found[-1], Goodbye):
                assert found[-1].reason.startswith((*errors.GOODBYES, "413 ", "503 ")), found[-1]

    def _ticket(self, visitor: Visitor) -> Any:
        return visitor.party.endpoint.ticket() if visitor.party.told(Interrupted) else None


def left(quay: Quay) -> list[object]:
    """What is still kept at a quay without clients."""
    desk: Any = quay.handlers.of("reactive_streams_io")
    found: list[object] = [*quay.streams, *quay.streams._scopes, *quay.following._lines]
    if len(desk._reader_access._all):
        found.append(desk._reader_access)
    for room in desk._registries.values():
        found += [*room._counterparts.values(), *room._at, *room._offers.values()]
        resumables = room._resumables
        found += [*resumables._by_token, *resumables._lost, *resumables._idle, *resumables._abandoned]
        found += [room._connection_budget] if room._connection_budget.used_bytes else []
    if len(quay.outbox):
        found.append(quay.outbox)
    return found

"""Sessions over faulty wires, one after the other at one session handler.

Each session has clients with correct endpoints, wires that make mistakes, a broker that refuses or stalls, readers that
disconnect, and a correct neighbor, who must get all responses. After each session, the handler must have no state left.

    with ConversationService() as service:
        service.hold(plan)
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
from mappings.reactive_streams_io.endpoint import EndpointRole, EndpointState
from mappings.reactive_streams_io.events import Interrupted
from mappings.reactive_streams_io.frames import Extension, Goodbye, Seq
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from tests.support.in_process.reactive_streams_io import HISTORY, H, RsioHarness, source, subscribe
from tests.support.in_process.service import LAMP, pause, turn, until
from tests.support.reactive_streams_io.conversation import EndpointClient
from tests.support.reactive_streams_io.examples import decoder
from tests.support.reactive_streams_io.faulty_wire import Wire, WireFault, slips
from tests.support.reactive_streams_io.two_endpoints import GOODBYES

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
CLIENTS = 2
ROUNDS = 300
WORN = 300
"""The number of sessions after which a new handler starts, because the lamp's history is long."""

NEIGHBOUR = "02 00 03 01 02 03 81 01 00 82 01 01 31 82 01 01 32"


class Step(NamedTuple):
    """An action of a client or a fault, and the most rounds of exchanged frames after it."""

    client: int
    what: str
    which: int = 0
    much: int = 0
    rounds: int = ROUNDS


class Plan(NamedTuple):
    """A whole conversation; the faults of the wires, by client and by direction."""

    extensions: frozenset[Extension]
    steps: list[Step]
    to_service: list[list[WireFault]]
    to_client: list[list[WireFault]]


ACTS = (
    *("subscribe",) * 5,
    *("request",) * 3,
    "cancel",
    "cancel",
    "wait",
    "disconnect",
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
    st.integers(0, CLIENTS - 1),
    st.sampled_from(ACTS),
    st.integers(0, len(NAMES) - 1),
    st.integers(0, 6),
    st.sampled_from((ROUNDS, 0, 1, 2)),
)
wires = st.lists(slips, min_size=CLIENTS, max_size=CLIENTS)
plans = st.builds(
    Plan, st.frozensets(st.sampled_from(Extension)), st.lists(steps, min_size=5, max_size=20), wires, wires
)


class RoamingClient:
    """A client that moves from one address to another."""

    def __init__(
        self, rsio_harness: RsioHarness, name: str, extensions: frozenset[Extension], to_service: Wire, to_client: Wire
    ) -> None:
        self.rsio_harness = rsio_harness
        self.name = name
        self.extensions = extensions
        self.to_service, self.to_client = to_service, to_client
        self.places: list[str] = []
        self.requester: EndpointClient
        self.connect()

    def __repr__(self) -> str:
        return f"<Visitor {self.name} at {self.places[-1]}, {self.requester}>"

    def connect(self, ticket: Any = None, *, stays: bool = False) -> None:
        """Start a new client, at the same or another address, with a ticket to resume a session or without."""
        if not stays or not self.places:
            self.places.append(f"{self.name}/{len(self.places)}")
            self.received = 0
        self.requester = EndpointClient(
            EndpointRole.CLIENT,
            self.rsio_harness.clock,
            30,
            has_messages=True,
            extensions=self.extensions,
            ticket=ticket,
            limits=EndpointLimits(),
        )

    def send_messages(self) -> bool:
        sent, place, former = self.requester.messages(), self.places[-1], None
        for message in self.to_service.carry(sent):
            # The broker marks some of the duplicates.
            again = message == former and len(message) % 2 == 1
            former = message
            self.rsio_harness.handle(
                self.rsio_harness.delivery(message, f"{place}-{crc32(message)}", redelivered=again, reply_to=place)
            )
        return bool(sent)

    def receive_messages(self) -> bool:
        messages = self.rsio_harness.messages(self.places[-1])
        received, self.received = messages[self.received :], len(messages)
        for message in self.to_client.carry(received):
            self.requester.react(self.requester.endpoint.receive(message, self.rsio_harness.clock.now()))
        return bool(received)

    def disconnect(self) -> None:
        self.rsio_harness.reader(self.places[-1], ReaderStatus.GONE)
        self.requester.react(self.requester.endpoint.lose(self.rsio_harness.clock.now()))


class ConversationService:
    """Runs conversations at one session handler, in its own event loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._quay: RsioHarness | None = None
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
        """Run a whole session.

        Raises AssertionError for a violated property; the next session then has a new handler.
        """
        self._runner.run(self._hold(plan))

    async def _close(self) -> None:
        if self._quay is not None:
            await self._quay.close()
            self._quay = None

    async def _hold(self, plan: Plan) -> None:
        if self._quay is None:
            self._quay = await RsioHarness.filled(
                source(), source("in2", "acme:stranger"), revisions=4, options={"elementLimit": ELEMENT}
            )
        try:
            with capture_logs() as logs:
                await Conversation(self._quay, plan).hold()
            # With messages, because outside of test modules an assertion does not show its operands.
            errors = [each for each in logs if each["log_level"] not in ("debug", "info", "warning")]
            assert not errors, errors
            assert not self._faults, self._faults
        except BaseException:
            self._faults.clear()
            await self._close()
            raise
        self.held += 1
        if self.held % WORN == 0:
            await self._close()


class Conversation:
    """The run of one plan at a handler without sessions."""

    def __init__(self, rsio_harness: RsioHarness, plan: Plan) -> None:
        self.rsio_harness = rsio_harness
        self.plan = plan
        self.clients = [
            RoamingClient(
                rsio_harness, f"c{number}", plan.extensions, Wire(plan.to_service[number]), Wire(plan.to_client[number])
            )
            for number in range(CLIENTS)
        ]
        self.waited = 0.0

    async def hold(self) -> None:
        rsio_harness = self.rsio_harness
        delivered = rsio_harness._number
        rsio_harness.send("well", H, subscribe("tck/range?n=4", 1, 2))
        await self.exchange()
        for step in self.plan.steps:
            await self.do(step)
            await self.exchange(step.rounds)
        rsio_harness.link.refuses = None
        self.resume_commits()
        await self.exchange()
        rsio_harness.send("well", "12 01 05")
        await rsio_harness.received("well", f"{NEIGHBOUR} 82 01 01 33 82 01 01 34 86 01")
        rsio_harness.send("well", "03 00")
        await self.leave()
        self.check()
        assert len(rsio_harness.outcomes) == rsio_harness._number - delivered
        rsio_harness.forget()

    async def do(self, step: Step) -> None:
        rsio_harness, client = self.rsio_harness, self.clients[step.client]
        endpoint = client.requester.endpoint
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
            case "disconnect":
                client.disconnect()
                client.connect(self._ticket(client))
            case "restart":
                client.connect(stays=True)
            case "elsewhere":
                client.requester.react(endpoint.lose(rsio_harness.clock.now()))
                client.connect(self._ticket(client))
            case "turn":
                # A queue that waits for confirms also holds back the response.
                if rsio_harness.link.confirms and rsio_harness.link.refuses is None:
                    await rsio_harness.dispatch(turn(step.much))
            case "refuse":
                rsio_harness.link.refuses = PublishFailed("too large", status=413) if step.which % 2 else None
            case "stall":
                rsio_harness.link.confirms = False
            case "go on":
                self.resume_commits()
            case "stranger":
                rsio_harness.send(client.places[-1], "12 01 01" if step.which % 2 else H, source=1)
            case "part":
                client.requester.react(endpoint.close(rsio_harness.clock.now()))

    def resume_commits(self) -> None:
        self.rsio_harness.link.confirms = True
        self.rsio_harness.link.confirm()

    def wait(self, seconds: float) -> None:
        self.waited += seconds
        self.rsio_harness.clock.advance(seconds)
        self.rsio_harness.sweep_sessions()
        self.rsio_harness.streams.sweep()
        for client in self.clients:
            client.requester.react(client.requester.endpoint.tick(self.rsio_harness.clock.now()))

    async def exchange(self, rounds: int = ROUNDS) -> None:
        """Exchange messages until all are silent, or for `rounds` rounds."""
        for _ in range(rounds):
            have_sent = [client.send_messages() for client in self.clients]
            await pause()
            have_received = [client.receive_messages() for client in self.clients]
            if not any((*have_sent, *have_received)):
                return
        assert rounds < ROUNDS, f"the exchange does not end: {self.clients}"

    async def leave(self) -> None:
        """Disconnect all clients, and wait until no session can be resumed."""
        for client in self.clients:
            for place in client.places:
                self.rsio_harness.reader(place, ReaderStatus.GONE)
        for _ in range(4):
            self.rsio_harness.clock.advance(700)
            self.rsio_harness.sweep_sessions()
            self.rsio_harness.streams.sweep()
        await until(lambda: len(asyncio.all_tasks()) == 1)

    def check(self) -> None:
        """Check that all output is whole frames that end in documented goodbyes, and that no state remains."""
        for client in self.clients:
            # A resumed session has begun its streams at another address.
            sizes = dict.fromkeys(range(1, 100), 0)
            for place in client.places:
                self._check_output(self.rsio_harness.messages(place), sizes)
        assert left(self.rsio_harness) == []

    def _check_output(self, messages: Sequence[bytes], sizes: dict[int, int]) -> None:
        for message in messages:
            reader = decoder(sizes)
            found = list(reader.feed(message))
            assert not reader.waiting
            assert len(message) <= EndpointLimits().batch or sum(not isinstance(frame, Seq) for frame in found) == 1
            for frame in found[:-1]:
                assert not isinstance(frame, Goodbye)
            if found and isinstance(found[-1], Goodbye):
                assert found[-1].reason.startswith((*GOODBYES, "413 ", "503 ")), found[-1]

    def _ticket(self, client: RoamingClient) -> Any:
        return client.requester.endpoint.ticket() if client.requester.reported(Interrupted) else None


def left(rsio_harness: RsioHarness) -> list[object]:
    """Return the remaining state of a handler without clients."""
    handler: Any = rsio_harness.handlers["reactive_streams_io"]
    found: list[object] = [*rsio_harness.streams, *rsio_harness.streams._scopes, *rsio_harness.following._lines]
    if len(handler._reader_access._all):
        found.append(handler._reader_access)
    for room in handler._registries.values():
        found += [*room._peers.values(), *room._at, *room._offers.values()]
        resumables = room._resumables
        found += [*resumables._by_token, *resumables._lost, *resumables._idle, *resumables._abandoned]
    found += [budget for budget in rsio_harness.streams.budgets.values() if budget.used_bytes]
    if len(rsio_harness.outbox):
        found.append(rsio_harness.outbox)
    return found

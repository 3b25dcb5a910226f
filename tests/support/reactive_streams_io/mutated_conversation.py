"""Faulty sessions, and their required results: they continue, or end with a documented goodbye.

A session is a hello and frames of peers, valid or invalid, in any order; then bytes are changed, lost, repeated and
inserted, and it is read in pieces of any size.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.events import (
    Cancelled,
    Closed,
    Completed,
    ElementsReceived,
    StreamAccepted,
    StreamFailed,
    SubscribeReceived,
)
from mappings.reactive_streams_io.frames import (
    CancelFrame,
    ClientHello,
    Frame,
    Goodbye,
    OnComplete,
    OnError,
    OnNext,
    OnNextLastPart,
    OnNextPart,
    OnSubscribe,
    RequestFrame,
    ServerHello,
    SubscribeFrame,
    encode,
)
from mappings.reactive_streams_io.limits import UNBOUNDED, EndpointLimits
from mappings.reactive_streams_io.resumption import Resumables
from tests.support.reactive_streams_io.conversation import EndpointClient
from tests.support.reactive_streams_io.examples import decoder, raw
from tests.support.reactive_streams_io.faulty_wire import OF_EITHER, OF_OCTETS, changed, pieces
from tests.support.reactive_streams_io.two_endpoints import GOODBYES

LIMITS = EndpointLimits(
    frame=4096, element=8192, incomplete_elements=16_384, backlog=4096, copies=4096, window=16, subscriptions=4
)
"""Small limits, which a conversation of a few dozen frames reaches."""

NAMES = [
    "tck/range?n=5",
    "tck/never",
    "tck/fail?after=2",
    "tck/fixed?n=30&size=2",
    "tck/big?bytes=5000",
    "tck/x",
    "a//b",
    "",
]

OF_A_SUBSCRIBER = [
    frame
    for subscriber, name in enumerate(NAMES, 1)
    for frame in (
        # Mostly repeats of the same subscribe, which is valid.
        *[SubscribeFrame(name, subscriber, (0, 3, UNBOUNDED)[subscriber % 3])] * 4,
        *(RequestFrame(subscriber, demand) for demand in (1, 2, UNBOUNDED)),
        CancelFrame(subscriber),
    )
]
WRONGLY = [
    SubscribeFrame("tck/never", 1, 9),
    RequestFrame(1, 0),
    CancelFrame(300),
    SubscribeFrame("tck/range?n=1", 300, 1),
]
OF_A_PUBLISHER = [
    message
    for subscriber, size in ((1, 0), (2, 2), (3, 0))
    for message in (
        *[encode(OnNext(subscriber, b"ab"), size)] * 2,
        bytes([0x83, subscriber]) + raw("02 61 62 63 64") if size else encode(OnNext(subscriber, b"")),
        *(encode(OnNextPart(subscriber, element, bytes(2000))) for element in range(3)),
        encode(OnNextPart(subscriber, 1, b"")),
        *(encode(OnNextLastPart(subscriber, element, b"ab")) for element in range(3)),
        encode(OnComplete(subscriber)),
        encode(OnError(subscriber, "500 x")),
    )
]
BEGUN = [encode(OnSubscribe(1, 0)), encode(OnSubscribe(2, 2)), encode(OnSubscribe(3, 0))]
HELLOS = st.lists(st.sampled_from([1, 2, 3, 9000]), max_size=4).map(tuple)
RIGHT = {
    EndpointRole.SERVER: [encode(frame) for frame in OF_A_SUBSCRIBER],
    EndpointRole.CLIENT: [*OF_A_PUBLISHER, *(encode(frame) for frame in OF_A_SUBSCRIBER[:8])],
}
WRONG = [*(encode(frame) for frame in (*OF_EITHER, *WRONGLY)), *BEGUN]
CHANGES = st.lists(
    st.tuples(st.sampled_from(OF_OCTETS), st.integers(0, 1 << 16), st.integers(0, 255)),
    max_size=6,
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[EndpointRole, bool, list[bytes]]:
    """Draw a role, whether the transport has messages, and the input."""
    role = draw(st.sampled_from(EndpointRole))
    listed = draw(HELLOS)
    hello = encode(ClientHello(0, listed) if role is EndpointRole.SERVER else ServerHello(0, listed))
    begun = BEGUN if role is EndpointRole.CLIENT and draw(st.integers(0, 3)) else []
    right = draw(st.lists(st.sampled_from(RIGHT[role]), min_size=10, max_size=40))
    messages = [hello, *begun, *right, *draw(st.lists(st.sampled_from(WRONG), max_size=2))]
    messages += draw(st.lists(st.sampled_from(RIGHT[role]), max_size=5))
    changes = draw(CHANGES) if draw(st.booleans()) else []
    if draw(st.booleans()):
        return (
            role,
            True,
            [changed(message, changes if place % 9 == 8 else []) for place, message in enumerate(messages)],
        )
    whole = changed(b"".join(messages), changes)
    return role, False, pieces(whole, draw(st.lists(st.sampled_from([1, 2, 7, 40, 5000]), min_size=1, max_size=4)))


def frames_of(output: bytes) -> list[Frame]:
    """Return the frames of an output, which must be complete."""
    reader = decoder(limits=EndpointLimits())
    found = list(reader.feed(output))
    assert not reader.waiting
    return found


def is_bounded(requester: EndpointClient) -> bool:
    """Return whether the state for the peer stays below the limits."""
    session = requester.endpoint.session
    kept = session.held_bytes - sum(each.waiting_bytes for each in session.publishing.values())
    bound = LIMITS.copies + 3 * LIMITS.backlog + LIMITS.incomplete_elements
    return kept <= bound and len(session.publishing) <= LIMITS.subscriptions


def run_session(conversation: tuple[EndpointRole, bool, list[bytes]]) -> None:
    """Run a session at an endpoint, and check its output and events."""
    role, has_messages, received = conversation
    options: dict[str, Any] = {"resumables": Resumables(LIMITS)} if role is EndpointRole.SERVER else {}
    requester = EndpointClient(role, pages=20, limits=LIMITS, has_messages=has_messages, **options)
    own = [requester.endpoint.subscribe("x", demand) for demand in (0, 2, UNBOUNDED)]
    output = requester.sends()
    for number, piece in enumerate(received):
        output += requester.expect(piece)
        assert is_bounded(requester)
        if number == 20 and requester.endpoint.session.cancel(own[1]):
            own.remove(own[1])
            output += requester.sends()
    found = frames_of(output)
    closed = requester.reported(Closed)
    if requester.endpoint.is_closed and not requester.endpoint.ticket():
        goodbyes = [frame for frame in found if isinstance(frame, Goodbye)]
        assert found[-1:] == goodbyes
        assert goodbyes[0].reason.startswith(GOODBYES)
        assert len(closed) == 1
    elif not requester.endpoint.is_closed:
        assert not closed
    assert requester.expect(b"") == b""
    requester.react(requester.endpoint.lose(requester.clock.now()))
    requester.react(requester.endpoint.close(requester.clock.now()))
    all_end_once(requester, own)


def all_end_once(requester: EndpointClient, own: list[int]) -> None:
    """Check that streams begin before they have elements, end once, and have no elements after their end."""
    over: set[int] = set()
    begun: set[int] = set()
    for event in requester.events:
        if isinstance(event, SubscribeReceived | StreamAccepted):
            assert event.stream not in begun | over
            begun.add(event.stream)
        elif isinstance(event, Cancelled | Completed | StreamFailed):
            assert event.stream not in over
            over.add(event.stream)
        elif isinstance(event, ElementsReceived):
            assert event.stream in begun - over
            assert event.stream != own[0]
    if requester.reported(Closed):
        assert set(own) <= over | {own[-1]} or requester.endpoint.ticket()

"""The parsers of reactive-streams-io: frames, names and reasons, and whole conversations.

`rsio-frames` feeds an endpoint of either role; `rsio-names` reads publisher names and reasons. `rsio-endpoints` and
`rsio-sessions` make a plan of the bytes, which two endpoints or clients of a session handler carry out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings

from mappings.errors import DecodeError
from mappings.reactive_streams_io import errors, frames, publisher_names
from mappings.reactive_streams_io.endpoint import EndpointRole
from mappings.reactive_streams_io.frames import ClientHello, ServerHello, encode
from tests.fuzzing.target import target
from tests.support import memory_transport as _memory_transport  # noqa: F401 - the connection type of the sessions
from tests.support.dice import dice
from tests.support.in_process import faulty_conversations
from tests.support.reactive_streams_io import two_endpoints
from tests.support.reactive_streams_io.examples import EXAMPLES
from tests.support.reactive_streams_io.faulty_wire import pieces
from tests.support.reactive_streams_io.mutated_conversation import run_session

SIZES = ([1], [7, 2], [40], [5000])
UNSTORED = settings(database=None)
"""The fuzzer itself keeps the failing inputs."""


def read_frames(data: bytes) -> None:
    """Received bytes give a session that continues, or ends with a documented goodbye.

    The first byte selects the endpoint's role, the transport and the peer's hello.
    """
    how, received = data[0] if data else 0, data[1:]
    role = EndpointRole.CLIENT if how & 1 else EndpointRole.SERVER
    hello = (ServerHello if how & 1 else ClientHello)(0, (1, 2, 3) if how & 4 else ())
    messages = [encode(hello)] if how & 8 else []
    if how & 2:
        # With messages, each message has its length in the byte before it.
        while received:
            length = received[0] + 1
            messages.append(received[1 : 1 + length])
            received = received[1 + length :]
    else:
        messages += pieces(received, SIZES[how >> 4 & 3])
    run_session((role, bool(how & 2), messages))


def read_names(data: bytes) -> None:
    """Publisher names, reasons and the first bytes of a message are read, or refused by a DecodeError."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(DecodeError):
        publisher_names.parse(text, with_test_publishers=True)
    fault = errors.read(text)
    assert 100 <= fault.status < 600
    assert len(errors.write(fault).encode()) <= errors.MAX_TEXT_LENGTH
    assert not (frames.begins_session(data) and frames.is_parting(data))


@UNSTORED
@given(two_endpoints.plans)
def converse(plan: two_endpoints.Plan) -> None:
    two_endpoints.run_plan(plan)


_service = faulty_conversations.ConversationService()


@UNSTORED
@given(faulty_conversations.plans)
def serve(plan: faulty_conversations.Plan) -> None:
    _service.hold(plan)


def _one_input(test: Any) -> Callable[[bytes], object]:
    """Return the function by which Hypothesis draws an example from given bytes."""
    fuzz: Callable[[bytes], object] = test.hypothesis.fuzz_one_input
    return fuzz


_random = dice("fuzzing")
_PLANS = [_random.randbytes(1500) for _ in range(20)]
"""Long seeds, because a plan needs many bytes."""

TARGETS = {
    "rsio-frames": target(
        read_frames, [bytes([how]) + bytes.fromhex(each.raw) for each in EXAMPLES for how in (0x08, 0x0D)]
    ),
    "rsio-names": target(
        read_names,
        [
            "things/org.acme:lamp-1/history?from=2&to=4&filter=eq(attributes/a,%22x%22)",
            "things/org.acme:lamp-1/events?project=/features/t/properties/value&pack=f64",
            "things/search?options=size(2)&unit=thing&namespaces=a,b",
            "streams/tank/0?resend_from=10&resend_to=13",
            "tck/fixed?n=3&size=16",
            "404 things:thing.notfound The Thing could not be found.",
        ],
        ["things/", "policies/", "streams/", "tck/", "ingest/", "/history", "/events", "from=", "follow=true", "pack="],
    ),
    "rsio-endpoints": target(_one_input(converse), _PLANS),
    "rsio-sessions": target(_one_input(serve), _PLANS),
}

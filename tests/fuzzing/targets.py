"""What is fuzzed: functions of octets that raise where a promise is broken, and what they begin with.

`raw` hears them as they are, in both roles; `talk` and `desk` make a plan of them, which two endpoints or clients at a
desk carry out; `names` reads publisher strings and reasons.
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
from tests.support.dice import dice
from tests.support.in_process import faulty_conversations as conversation_service
from tests.support.reactive_streams_io import two_endpoints as talk
from tests.support.reactive_streams_io.examples import EXAMPLES
from tests.support.reactive_streams_io.faulty_wire import pieces
from tests.support.reactive_streams_io.mutated_conversation import held

SIZES = ([1], [7, 2], [40], [5000])
ALONE = settings(database=None)
"""What breaks a promise is kept by the fuzzer."""


def hear(data: bytes) -> None:
    """The first octet says who hears, of what transport, after which hello; the rest is heard."""
    how, said = data[0] if data else 0, data[1:]
    role = EndpointRole.CLIENT if how & 1 else EndpointRole.SERVER
    hello = (ServerHello if how & 1 else ClientHello)(0, (1, 2, 3) if how & 4 else ())
    heard = [encode(hello)] if how & 8 else []
    if how & 2:
        # Each message ends where the next octet says.
        while said:
            length = said[0] + 1
            heard.append(said[1 : 1 + length])
            said = said[1 + length :]
    else:
        heard += pieces(said, SIZES[how >> 4 & 3])
    held((role, bool(how & 2), heard))


def read(data: bytes) -> None:
    """Names, reasons and what a message begins with: read, or refused by the one error that there is."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(DecodeError):
        publisher_names.parse(text, with_test_publishers=True)
    fault = errors.read(text)
    assert 100 <= fault.status < 600
    assert len(errors.write(fault).encode()) <= errors.MAX_TEXT_LENGTH
    assert not (frames.begins_session(data) and frames.is_parting(data))


@ALONE
@given(talk.plans)
def talked(plan: talk.Plan) -> None:
    talk.held(plan)


_harbour = conversation_service.ConversationService()


@ALONE
@given(conversation_service.plans)
def moored(plan: conversation_service.Plan) -> None:
    _harbour.hold(plan)


def _fuzzed(test: Any) -> Callable[[bytes], object]:
    """What Hypothesis adds to a test so that bytes from outside choose its examples."""
    fuzz: Callable[[bytes], object] = test.hypothesis.fuzz_one_input
    return fuzz


TARGETS: dict[str, Callable[[bytes], object]] = {
    "octets": hear,
    "names": read,
    "talk": _fuzzed(talked),
    "desk": _fuzzed(moored),
}

_random = dice("fuzzing")
SEEDS: dict[str, list[bytes]] = {
    "octets": [bytes([how]) + bytes.fromhex(each.raw) for each in EXAMPLES for how in (0x08, 0x0D)],
    "names": [
        b"things/org.acme:lamp-1/history?from=2&to=4&filter=eq(attributes/a,%22x%22)",
        b"things/org.acme:lamp-1/events?project=/features/t/properties/value&pack=f64",
        b"things/search?options=size(2)&unit=thing&namespaces=a,b",
        b"streams/tank/0?resend_from=10&resend_to=13",
        b"tck/fixed?n=3&size=16",
        b"404 things:thing.notfound The Thing could not be found.",
    ],
    "talk": [_random.randbytes(1500) for _ in range(20)],
    "desk": [_random.randbytes(1500) for _ in range(20)],
}
"""What they begin with. Plans are made of what is long enough."""

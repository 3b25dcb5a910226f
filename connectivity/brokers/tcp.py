"""TCP doors: the service listens, and clients connect to it; what a connection document of this type may say.

`MANUAL` says how addresses, headers, outcomes and limits are here; `docs/tcp.md` is printed from it. The options are
described in `connectivity.tcp.options`, the link in `connectivity.tcp.link`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from connectivity.brokers.base import BrokerType
from connectivity.doors.lifetime import CLOSING, OPENING
from connectivity.doors.link import MOST_HELD, REPLY_TO
from connectivity.doors.listening import check_door
from connectivity.errors import Problem
from connectivity.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes
from connectivity.model import Connection
from connectivity.rules import URI_INVALID, check_without_placeholders, json_path, show
from connectivity.tcp.link import USER
from connectivity.tcp.listening import examine, listen
from connectivity.tcp.options import Options

_TO_THE_PEER = re.compile(rf"\{{\{{\s*header:{REPLY_TO}\s*\}}\}}")


def check(connection: Connection) -> Sequence[Problem]:
    """The rules of doors for streams."""
    return [*_check_uri(connection), *check_door(connection), *_check_source(connection)]


def _check_uri(connection: Connection) -> Iterator[Problem]:
    uri = connection.broker_uri
    if uri.path not in ("", "/"):
        yield Problem("uri", show(uri.path), "an address to listen at without a path", code=URI_INVALID)
    if uri.username is not None:
        expected = "none, since peers show certificates (ca)"
        yield Problem("uri", "a user name", expected, code=URI_INVALID)


def _check_source(connection: Connection) -> Iterator[Problem]:
    """Whoever connects says nothing of where it wants to go: there is one place, and nobody to send anything else to."""
    if len(connection.sources) != 1:
        yield Problem("sources", f"{len(connection.sources)} sources", "one: what peers send has no address")
    for index, source in enumerate(connection.sources):
        path = json_path("sources", index, "addresses")
        if len(source.addresses) != 1:
            yield Problem(path, f"{len(source.addresses)} addresses", "one, by which the peers are called")
        for position, address in enumerate(source.addresses):
            yield from check_without_placeholders(f"{path}[{position}]", address)
        if len(source.payload_mapping) > 1:
            expected = "one, since a stream of octets means one thing"
            place = json_path("sources", index, "payloadMapping")
            yield Problem(place, f"{len(source.payload_mapping)} payload mappings", expected)
        reply = source.reply_target
        if reply.enabled and not _TO_THE_PEER.fullmatch(reply.address):
            expected = f"{{{{ header:{REPLY_TO} }}}}: there is nobody else to be answered"
            yield Problem(json_path("sources", index, "replyTarget", "address"), show(reply.address), expected)
    if connection.targets:
        yield Problem("targets", f"{len(connection.targets)} targets", "none: peers are sent what they have asked for")


MANUAL = Manual(
    family="TCP",
    title="TCP doors",
    introduction=f"""\
There is no broker in between: the service listens at the `uri`, and whoever connects is a peer with a session of its own.
`tcp://127.0.0.1:8766` listens on the machine itself, `tcp://0.0.0.0:8766` at all of its addresses. With `ssl` the door shows
the certificate of the connection's `credentials`, and names the wire protocol to peers that ask for it by ALPN (`rsio/0`).
The rules for the hosts of brokers (`hosts` in the settings) do not count for doors.

A connection is a stream of octets, and only a wire protocol that reads such a stream can be spoken over it:
[reactive-streams-io](reactive-streams-io.md).

Without a `ca` everybody who reaches the port may come in and speaks for the source's `authorizationContext`. With one,
peers must show a certificate that it has signed; the common name in it is the header `{USER}`, so that
`"authorizationContext": ["{{{{ header:{USER} }}}}"]` makes it the subject.
""",
    example="examples/connections/rsio-door.yaml",
    addresses=(
        AddressForm("source", "name", "what peers send; the one source's one address, a word of your choice", "rsio"),
        AddressForm("reply-target", "peer", "the peer who has said something", "{{ header:reply-to }}"),
    ),
    address_rules="A reply-target without an address answers to the peer. There are no targets.\n",
    headers=(
        HeaderRule(REPLY_TO, "the id of the peer, which nobody can guess", "is dropped"),
        HeaderRule(USER, "the common name in its certificate", "is dropped"),
        HeaderRule("any other", "there is none", "is dropped"),
    ),
    outcomes=Outcomes(
        settled="nothing is said",
        again="nothing comes again: the wire protocol says what is missing",
        dropped="nothing is said",
    ),
    settling_rules="""\
A delivery is a piece of a peer's stream as the socket has brought it, so that there are more or fewer of them for the same
octets. The first one of each peer is empty: it says that the peer is there, and the service may speak first.
""",
    limits=(
        Limit("pieces of all peers together that wait for their end", f"about {MOST_HELD}"),
        Limit("seconds for the TLS handshake", f"{OPENING:g}"),
        Limit("seconds for the peer's part of a closing", f"{CLOSING:g}"),
        Limit("peers, pieces, times", "the options below"),
        Limit("frames, streams, silence", "as [the wire protocol](reactive-streams-io.md) says"),
    ),
    faults=(
        Fault("the port is in use", "status `connection refused: cannot listen at …`; tried again until it is free"),
        Fault("a missing or unknown certificate, where there is a `ca`", "the TLS handshake fails"),
        Fault("more peers than `maxPeers`", "the connection is closed at once"),
        Fault("what is no frame of the wire protocol", "the peer is told goodbye, and the connection is closed"),
        Fault(
            "a peer that reads slowly",
            "its streams go at its pace, and nothing more is read from it; one that takes nothing for `outputTimeout` is "
            "cut off; none is taken for silent meanwhile",
        ),
        Fault("the connection is closed, or the service stops", "peers are told goodbye, and sockets are closed"),
    ),
    notes=(
        Note(
            "The end of a peer",
            """\
A connection that is closed or breaks ends its session, or lets it wait for its token, as reactive-streams-io says. The
service closes a connection behind its goodbye: it sends nothing more, reads what still comes and drops it, and cuts off
who does not close within the time above.
""",
        ),
    ),
)

BROKER = BrokerType(
    name="tcp",
    schemes=("tcp",),
    secure_schemes=("ssl", "tls"),
    options=Options,
    check=check,
    has_headers=True,
    connect=listen,
    examine=examine,
    example_uri="tcp://127.0.0.1:8766",
    manual=MANUAL,
    is_door=True,
    is_stream=True,
    example_source={"addresses": ["rsio"], "payloadMapping": ["ReactiveStreamsIO"]},
    example_full={
        "uri": "ssl://0.0.0.0:8766",
        "credentials": {"type": "client-cert", "cert": "${file:door.crt}", "key": "${file:door.key}"},
        "sources": [
            {
                "addresses": ["rsio"],
                "authorizationContext": [f"{{{{ header:{USER} }}}}"],
                "payloadMapping": ["streams"],
            }
        ],
        "targets": [],
        "mappingDefinitions": {
            "streams": {"mappingEngine": "ReactiveStreamsIO", "options": {"sessionIdleTimeout": "10m"}}
        },
    },
)

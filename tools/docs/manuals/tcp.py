"""What the documentation says about the connection type TCP listener."""

from __future__ import annotations

from connectivity.transports.listener.link import MOST_HELD, REPLY_TO
from connectivity.transports.listener.timeouts import CLOSING, OPENING
from connectivity.transports.tcp.link import USER
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="TCP",
    title="TCP listener",
    introduction=f"""\
There is no broker in between: the service listens at the `uri`, and whoever connects is a peer with a session of its own.
`tcp://127.0.0.1:8766` listens on the machine itself, `tcp://0.0.0.0:8766` at all of its addresses. With `ssl` the listener
shows the certificate of the connection's `credentials`, and names the wire protocol to peers that ask for it by ALPN
(`rsio/0`). The rules for the hosts of brokers (`hosts` in the settings) do not apply to listeners.

A connection is a stream of bytes, and only a wire protocol that reads such a stream can be spoken over it:
[reactive-streams-io](reactive-streams-io.md).

Without a `ca` everybody who reaches the port may come in and speaks for the source's `authorizationContext`. With one,
peers must show a certificate that it has signed; the common name in it is the header `{USER}`, so that
`"authorizationContext": ["{{{{ header:{USER} }}}}"]` makes it the subject.
""",
    example="examples/connections/rsio-door.yaml",
    addresses=(
        AddressForm("source", "name", "what peers send; the one source's one address, a word of your choice", "rsio"),
        AddressForm("reply-target", "peer", "the peer that has sent something", "{{ header:reply-to }}"),
    ),
    address_rules="A reply-target without an address answers to the peer. There are no targets.\n",
    headers=(
        HeaderRule(REPLY_TO, "the id of the peer, which nobody can guess", "is dropped"),
        HeaderRule(USER, "the common name in its certificate", "is dropped"),
        HeaderRule("any other", "there is none", "is dropped"),
    ),
    outcomes=Outcomes(
        settled="nothing is sent",
        again="nothing comes again: the wire protocol says what is missing",
        dropped="nothing is sent",
    ),
    settling_rules="""\
A delivery is a piece of a peer's stream as the socket has brought it, so that their number varies for the same
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
        Fault("an invalid frame of the wire protocol", "the peer gets a goodbye, and the connection is closed"),
        Fault(
            "a peer that reads slowly",
            "its streams go at its pace, and nothing more is read from it; one that takes nothing for `outputTimeout` is "
            "cut off; none is taken for silent meanwhile",
        ),
        Fault("the connection is closed, or the service stops", "peers get a goodbye, and sockets are closed"),
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
    example_uri="tcp://127.0.0.1:8766",
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

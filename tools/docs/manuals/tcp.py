"""The manual of the connection type TCP listener."""

from __future__ import annotations

from connectivity.transports.listener.link import MAX_HELD, REPLY_TO
from connectivity.transports.listener.timeouts import CLOSING, OPENING
from connectivity.transports.tcp.link import CERTIFICATE
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="TCP",
    title="TCP listeners",
    introduction=f"""\
There is no broker: the service listens at the `uri`, and each client is a peer with its own session. `tcp://127.0.0.1:8766`
accepts connections only from the same machine; `tcp://0.0.0.0:8766` listens on all addresses of the machine. With `ssl` the
listener uses the certificate of the connection's `credentials`, and offers the wire protocol to peers by ALPN (`rsio/0`).
The rules for the hosts of brokers (`hosts` in the settings) do not apply to listeners.

A TCP connection is a stream of bytes, so it needs a wire protocol that reads such a stream:
[reactive-streams-io](reactive-streams-io.md).

Without a `ca`, everyone who reaches the port can connect, and has the source's `authorizationContext`. With a `ca`, peers
need a certificate that this CA has signed. The certificate's common name is the header `{CERTIFICATE}`, so that
`"authorizationContext": ["{{{{ header:{CERTIFICATE} }}}}"]` makes it the subject.
""",
    example="examples/connections/tcp-listener.yaml",
    addresses=(
        AddressForm(
            "source", "name", "messages from all peers; a name of your choice, since there is only one source", "rsio"
        ),
        AddressForm("reply-target", "peer", "the peer that has sent the request", "{{ header:reply-to }}"),
    ),
    address_rules="""\
A reply-target without an address sends responses to the peer of the request. TCP connections have no targets.
""",
    headers=(
        HeaderRule(REPLY_TO, "the id of the peer, which cannot be guessed", "is dropped"),
        HeaderRule(CERTIFICATE, "the common name in the peer's certificate", "is dropped"),
        HeaderRule("any other", "none", "is dropped"),
    ),
    outcomes=Outcomes(
        settled="none: there is no broker",
        again="no redelivery: the wire protocol shows missing commands",
        dropped="none: there is no broker",
    ),
    settling_rules="""\
A delivery is a piece of a peer's byte stream, as the service reads it from the socket, so the number of deliveries for the
same bytes varies. The first delivery of each peer is empty: it reports the new peer, so the service can send first.
""",
    limits=(
        Limit(
            "unsettled pieces of all peers together",
            f"{MAX_HELD}, and one more for each peer; users and their peers [share](subscriptions.md#sharing) this number, "
            "and the service stops reading from a peer that has used its share",
        ),
        Limit(
            "bytes of these pieces and of their expected responses", "`source.unsettled_bytes`, shared in the same way"
        ),
        Limit(
            "sockets",
            "the service accepts no new socket while the process has few file descriptors left, because "
            "other links need these",
        ),
        Limit("seconds for the TLS handshake", f"{OPENING:g}"),
        Limit("seconds for the peer to close its side", f"{CLOSING:g}"),
        Limit("peers, pieces, times", "see the options below"),
        Limit("frames, streams, silence", "see [the wire protocol](reactive-streams-io.md)"),
    ),
    faults=(
        Fault(
            "the port is in use",
            "status `connection refused: cannot listen at …`; the service retries until the port is free",
        ),
        Fault(
            "the listener's certificate has expired",
            "peers that check it do not connect; the service logs a warning when it opens the port",
        ),
        Fault("a missing, unknown or expired certificate, with a `ca`", "the TLS handshake fails"),
        Fault("more peers than `maxPeers`", "the service closes the new connection immediately, before TLS"),
        Fault(
            "more connections of an address than the options allow",
            "the service closes the new connection immediately, before TLS",
        ),
        Fault(
            "an invalid frame of the wire protocol", "the peer gets a goodbye, and the service closes its connection"
        ),
        Fault(
            "a peer that reads slowly",
            "its streams slow down, and the service stops reading from the peer; if the peer reads nothing for "
            "`outputTimeout`, the service disconnects it; meanwhile, the peer is not considered idle",
        ),
        Fault(
            "the connection is closed, or the service stops",
            "each peer gets the frame `goodbye`, then its socket is closed",
        ),
    ),
    notes=(
        Note(
            "End of a session",
            """\
When a TCP connection is closed or lost, its session ends or waits for its client to resume it, as reactive-streams-io
specifies. After its goodbye, the service closes the TCP connection: it sends no more data, discards further input, and
disconnects a peer that does not close its side in time.
""",
        ),
    ),
    example_uri="tcp://127.0.0.1:8766",
    example_source={"addresses": ["rsio"], "payloadMapping": ["ReactiveStreamsIO"]},
    example_full={
        "uri": "ssl://0.0.0.0:8766",
        "credentials": {"type": "client-cert", "cert": "${file:listener.crt}", "key": "${file:listener.key}"},
        "sources": [
            {
                "addresses": ["rsio"],
                "authorizationContext": [f"{{{{ header:{CERTIFICATE} }}}}"],
                "payloadMapping": ["streams"],
            }
        ],
        "targets": [],
        "mappingDefinitions": {
            "streams": {"mappingEngine": "ReactiveStreamsIO", "options": {"sessionIdleTimeout": "10m"}}
        },
    },
)

"""The manual of the connection type WebSocket listener."""

from __future__ import annotations

from connectivity.transports.listener.link import MAX_HELD, REPLY_TO
from connectivity.transports.listener.timeouts import OPENING
from connectivity.transports.websocket.handshake import ACCESS_TOKEN, CERTIFICATE, FRAME, KEPT_HEADERS, USER
from connectivity.transports.websocket.link import MOST_DELAYED
from connectivity.transports.websocket.peer import MAX_OPENING
from mappings.streamr.frames import HEADER
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="WebSocket",
    title="WebSocket listeners",
    introduction=f"""\
There is no broker: the service listens at the `uri`, and each client (a browser, a script, a Streamr client) is a peer with
its own session. `ws://127.0.0.1:8765` accepts connections only from the same machine; `ws://0.0.0.0:8765` listens on all
addresses of the machine. With `wss` the listener uses the certificate of the connection's `credentials`. The rules for the
hosts of brokers (`hosts` in the settings) do not apply to listeners.

Without `tokens` and `ca`, everyone who reaches the port can connect, and has the source's `authorizationContext`. A token's
name is the header `{USER}`, so that `"authorizationContext": ["{{{{ header:{USER} }}}}"]` makes it the subject. The common
name in a peer's certificate is the header `{CERTIFICATE}`. The two headers are different, so the service
never takes a name in a certificate for the name of a token. It refuses a message without the header that a subject
needs.
""",
    example="examples/connections/websocket-listener.yaml",
    addresses=(
        AddressForm("source", "/path", "messages from peers connected to this path", "/twins"),
        AddressForm("reply-target", "peer", "the peer that has sent the command", "{{ header:reply-to }}"),
        AddressForm("target, reply-target", "/path", "all peers connected to this path", "/alarms"),
    ),
    address_rules=f"""\
Peers connect to the paths of sources, and to the paths of targets without placeholders; the service drops messages to a
path without a source. A reply-target without an address sends responses to the peer of the request. If a command has the id
of another peer in the header `{REPLY_TO}`, the response goes to that peer. The ids of peers cannot be guessed.

Every peer at a target's path gets the target's messages. The `authorizationContext` of the target decides what these
messages contain, not the peer's token. Peers that must not see the same messages need separate listeners.
""",
    headers=(
        HeaderRule(REPLY_TO, "the id of the peer", "is dropped"),
        HeaderRule(USER, "the name of the peer's token", "is dropped"),
        HeaderRule(CERTIFICATE, "the common name in the peer's certificate", "is dropped"),
        HeaderRule(FRAME, "`text` or `binary`", "is dropped"),
        HeaderRule(HEADER, "the version of messages that the peer's query requests, if any", "is dropped"),
        HeaderRule(
            "content-type",
            "the header of the opening request",
            "selects the kind of WebSocket message: text for JSON and text, binary for other types",
        ),
        HeaderRule(
            "any other",
            "the header of the opening request, with its name in lower case, if the connection's document names it or a "
            "payload mapper reads it",
            "is dropped",
        ),
    ),
    header_rules=f"""\
Each message of a peer has the headers of the peer's opening request. The service keeps only the headers that the
connection's document names, in a placeholder such as `{{{{ header:x-line }}}}` or in a script, those that its
[payload mappers](mappings.md) read, such as `ditto-message-subject`, and {
        ", ".join(f"`{name}`" for name in sorted(KEPT_HEADERS))
    }. It never keeps cookies, `authorization`, or headers of HTTP and WebSocket themselves, such as `host` and `upgrade`.
The service sends a message without a content type as text if the message is UTF-8.
""",
    outcomes=Outcomes(
        settled="none: there is no broker",
        again="no redelivery: the peer has received the error and sends the command again",
        dropped="none: there is no broker",
    ),
    settling_rules="""\
Messages have no ids, so the service executes a command twice if a peer sends it twice, unless the command has an
`idempotency-key`. The service also executes commands that a peer sends just before it disconnects.
""",
    limits=(
        Limit(
            "unsettled messages of all peers together",
            f"{MAX_HELD}, and one more for each peer; users and their peers [share](subscriptions.md#sharing) this number, "
            "and the service stops reading from a peer that has used its share",
        ),
        Limit(
            "bytes of these messages and of their expected responses",
            "`source.unsettled_bytes`, shared in the same way",
        ),
        Limit(
            "sockets",
            "the service accepts no new socket while the process has few file descriptors left, because "
            "other links need these",
        ),
        Limit("seconds for the opening request", f"{OPENING:g}"),
        Limit("bytes of the opening request", f"{MAX_OPENING:,}"),
        Limit("peers, sizes, pending output, times", "see the options below"),
    ),
    faults=(
        Fault(
            "the listener's certificate has expired",
            "peers that check it do not connect; the service logs a warning when it opens the port",
        ),
        Fault(
            "the port is in use",
            "status `connection refused: cannot listen at …`; the service retries until the port is free",
        ),
        Fault("an unknown path", "HTTP 404"),
        Fault(
            "a missing token",
            f"HTTP 401; tokens are sent as `Authorization: Bearer …` or `?{ACCESS_TOKEN}=…`",
        ),
        Fault(
            "a wrong token",
            "HTTP 401 after a delay of a tenth of a second, which doubles with each wrong token from the same address, up "
            "to four seconds; the log event `invalid token received` has the address. While "
            f"{MOST_DELAYED} of these responses wait, the service checks no token from that address, and returns HTTP 429",
        ),
        Fault(
            "an opening request that is too large",
            "HTTP 431; HTTP 400 for a line of more than 8,192 bytes, or for more than 128 headers",
        ),
        Fault("a web page that `origins` does not name", "HTTP 403"),
        Fault("an unsupported version of the Streamr protocol", "HTTP 400"),
        Fault("more peers than `maxPeers`", "HTTP 503"),
        Fault("more sockets of an address than the options allow", "the socket is closed before TLS"),
        Fault(
            "a request that is not a GET request of HTTP/1.1",
            "HTTP 400; proxies such as nginx use HTTP/1.0 unless you configure HTTP/1.1",
        ),
        Fault("a client that does not use WebSocket, such as a browser's address bar", "HTTP 426"),
        Fault("an unsupported subprotocol at the path", "no subprotocol is selected"),
        Fault(
            "a message that violates a wire protocol with sessions",
            "the service sends the goodbye of that protocol, then closes the socket with 1002",
        ),
        Fault(
            "a text message, although the wire protocol is binary",
            "the service sends the goodbye of that protocol, then closes the socket with 1003",
        ),
        Fault("a message larger than `limits.payload`", "the error `connectivity:message.toolarge`"),
        Fault("a message larger than `maxFrame`", "the socket is closed with 1009"),
        Fault("a text that is not UTF-8", "the socket is closed with 1007"),
        Fault(
            "a peer that reads slowly",
            "responses and subscriptions slow down, and the service stops reading from the peer. If messages of a "
            "target exceed `maxOutput`, or if the peer reads nothing for `outputTimeout`, the service disconnects "
            "the peer; in the first case with 1013",
        ),
        Fault("the connection is closed, or the service stops", "sockets are closed with 1001"),
    ),
    notes=(
        Note(
            "Subprotocols",
            """\
A peer can offer the subprotocol `rsio.v0` if a source uses [reactive-streams-io](reactive-streams-io.md). With this
subprotocol, the service sends hello first, and the peer must soon send its own hello. Without a subprotocol, the peer sends
first.
""",
        ),
        Note(
            "Quick start",
            """\
This example uses the listener of the example connections, and the command line of the library `websockets`:

```console
$ .venv/bin/python -m websockets ws://127.0.0.1:8765/twins
> {"topic": "acme.plant/boiler-1/things/twin/commands/retrieve", "path": "/", "headers": {"correlation-id": "1"}}
```

To get a token's hash, run `printf %s "$TOKEN" | sha256sum`. Proxies may log a token in a query: use it only for clients
that cannot set headers, such as a web page.
""",
        ),
        Note(
            "End of a session",
            """\
When a socket is closed, is lost, or does not answer pings, its session ends: the subscriptions end, and the service drops
the pending output. A peer that connects again is a new peer; it can get missed events from the history.
""",
        ),
    ),
    example_uri="ws://127.0.0.1:8765",
    example_source={"addresses": ["/twins"]},
    example_full={
        "uri": "wss://0.0.0.0:8765",
        "credentials": {"type": "client-cert", "cert": "${file:listener.crt}", "key": "${file:listener.key}"},
        "sources": [
            {
                "addresses": ["/twins"],
                "authorizationContext": [f"{{{{ header:{USER} }}}}"],
                "enforcement": {"input": f"{{{{ header:{USER} }}}}", "filters": ["{{ thing:name }}"]},
                "payloadMapping": ["Ditto"],
            }
        ],
        "targets": [
            {
                "address": "/alarms",
                "topics": ["_/_/things/twin/events?namespaces=acme.depot&filter=gt(attributes/load,10)"],
                "authorizationContext": ["integration:depot-7"],
                "payloadMapping": ["twinOnly"],
            }
        ],
    },
)

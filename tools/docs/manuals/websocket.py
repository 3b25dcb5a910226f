"""What the documentation says about the connection type WebSocket listener."""

from __future__ import annotations

from connectivity.transports.listener.link import MOST_HELD, REPLY_TO
from connectivity.transports.listener.timeouts import OPENING
from connectivity.transports.websocket.handshake import ACCESS_TOKEN, FRAME, USER
from mappings.streamr.frames import HEADER
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="WebSocket",
    title="WebSocket listener",
    introduction=f"""\
There is no broker in between: the service listens at the `uri`, and whoever connects (a browser, a script, a Streamr client)
is a peer with a session of its own. `ws://127.0.0.1:8765` listens on the machine itself, `ws://0.0.0.0:8765` at all of its
addresses. With `wss` the listener shows the certificate of the connection's `credentials`. The rules for the hosts of
brokers (`hosts` in the settings) do not apply to listeners.

Without `tokens` and `ca` everybody who reaches the port may come in and speaks for the source's `authorizationContext`. A
token's name is the header `{USER}`, so that `"authorizationContext": ["{{{{ header:{USER} }}}}"]` makes it the subject.
""",
    example="examples/connections/door.yaml",
    addresses=(
        AddressForm("source", "/path", "what peers send that have connected to this path", "/twins"),
        AddressForm("reply-target", "peer", "the peer who has sent the command", "{{ header:reply-to }}"),
        AddressForm("target, reply-target", "/path", "everybody who is connected to this path", "/alarms"),
    ),
    address_rules=f"""\
Peers connect to the paths of sources, and to those of targets that have no placeholders; what they send at a path that is no
source's is dropped. A reply-target without an address answers to the peer. Whoever names another address in the header
`{REPLY_TO}` of a command is answered there, if there is such a peer: ids of peers cannot be guessed.
""",
    headers=(
        HeaderRule(REPLY_TO, "the id of the peer", "is dropped"),
        HeaderRule(USER, "the name of its token, or the common name in its certificate", "is dropped"),
        HeaderRule(FRAME, "`text` or `binary`", "is dropped"),
        HeaderRule(HEADER, "the version of messages that its query asks for, where it does", "is dropped"),
        HeaderRule("content-type", "that of the request", "decides: JSON and text are sent as text, others as binary"),
        HeaderRule("any other", "that of the peer's opening request, in lower case", "is dropped"),
    ),
    header_rules="""\
They are those of the opening request and so the same for each message of a peer. Left out are the ones that belong to the
socket itself, cookies and `authorization`. A message without a content type is sent as text if it is UTF-8.
""",
    outcomes=Outcomes(
        settled="nothing is sent",
        again="no redelivery: the peer got an error and can repeat the request",
        dropped="nothing is sent",
    ),
    settling_rules="""\
Messages have no names, so that the same command sent twice is carried out twice, unless it carries an
`idempotency-key`. What a peer has sent before it left is carried out.
""",
    limits=(
        Limit("messages of all peers together that wait for their end", f"about {MOST_HELD}"),
        Limit("seconds for the opening request", f"{OPENING:g}"),
        Limit("peers, sizes, waiting output, times", "the options below"),
    ),
    faults=(
        Fault("the port is in use", "status `connection refused: cannot listen at …`; tried again until it is free"),
        Fault("a path that nothing is at", "HTTP 404"),
        Fault(
            "a missing or unknown token",
            f"HTTP 401; tokens are shown as `Authorization: Bearer …` or `?{ACCESS_TOKEN}=…`",
        ),
        Fault("a web page that `origins` does not name", "HTTP 403"),
        Fault("a version of the Streamr protocol that is not spoken", "HTTP 400"),
        Fault("more peers than `maxPeers`", "HTTP 503"),
        Fault("no WebSocket client, such as a browser's address line", "HTTP 426"),
        Fault("a subprotocol that is not spoken at the path", "none is agreed on"),
        Fault(
            "a message that breaks the wire protocol, where that has sessions",
            "goodbye of the wire protocol, then 1002",
        ),
        Fault(
            "a text message where the wire protocol requires binary messages", "goodbye of the wire protocol, then 1003"
        ),
        Fault("a message larger than `limits.payload`", "the error `connectivity:message.toolarge`"),
        Fault("a message larger than `maxFrame`", "the socket is closed with 1009"),
        Fault("a text that is no UTF-8", "the socket is closed with 1007"),
        Fault(
            "a peer that reads slowly",
            "answers and subscriptions go at its pace, and nothing more is read from it; what a target sends beyond "
            "`maxOutput` closes it with 1013; one that takes nothing for `outputTimeout` is cut off",
        ),
        Fault("the connection is closed, or the service stops", "sockets are closed with 1001"),
    ),
    notes=(
        Note(
            "Subprotocols",
            """\
A peer may offer the subprotocol `rsio.v0` where a source speaks [reactive-streams-io](reactive-streams-io.md). Once that is
agreed on the service says its hello, and does not wait for long for the peer's. Without a subprotocol the peer speaks first.
""",
        ),
        Note(
            "Trying it out",
            """\
With the listener of the example connections, and the command line of the library `websockets`:

```console
$ .venv/bin/python -m websockets ws://127.0.0.1:8765/twins
> {"topic": "acme.plant/boiler-1/things/twin/commands/retrieve", "path": "/", "headers": {"correlation-id": "1"}}
```

A token's hash is what `printf %s "$TOKEN" | sha256sum` prints. A token in a query may be written down by proxies on the way:
only what cannot set headers, such as a web page, should show it there.
""",
        ),
        Note(
            "The end of a peer",
            """\
A socket that is closed, breaks, or leaves pings unanswered ends its session: what was subscribed to over it ends, and what
waits for it is dropped. A peer that connects again is another one; what it has missed is in the history.
""",
        ),
    ),
    example_uri="ws://127.0.0.1:8765",
    example_source={"addresses": ["/twins"]},
    example_full={
        "uri": "wss://0.0.0.0:8765",
        "credentials": {"type": "client-cert", "cert": "${file:door.crt}", "key": "${file:door.key}"},
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

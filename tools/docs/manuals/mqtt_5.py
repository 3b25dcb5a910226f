"""What the documentation says about the connection type MQTT 5."""

from __future__ import annotations

from connectivity.transports.mqtt.link import IN_FLIGHT
from connectivity.transports.mqtt.mqtt5 import CONTENT_TYPE, CORRELATION, EXPIRY, REPLY_TO, SESSION_EXPIRY
from connectivity.transports.mqtt.mqtt311 import (
    QOS,
    RETAIN,
    TOPIC,
)
from connectivity.transports.mqtt.paho_client import PACKET_ROOM
from tools.docs.manual import HeaderRule, Limit, Manual, Note
from tools.docs.manuals.mqtt import OUTCOMES

MANUAL = Manual(
    family="MQTT",
    title="MQTT 5",
    introduction="MQTT 5: the same as [`mqtt`](#type-mqtt), but messages have headers, which are sent as MQTT properties.",
    example="examples/connections/gateways.json",
    headers=(
        HeaderRule(CORRELATION, "correlation data", "correlation data"),
        HeaderRule(REPLY_TO, "response topic", "response topic"),
        HeaderRule(CONTENT_TYPE, "content type", "content type"),
        HeaderRule(EXPIRY, "seconds that were left", "seconds to keep it; 0: for ever"),
        HeaderRule("any other", "the user property of this name", "a user property, unless it is blank"),
    ),
    header_rules=f"""\
`{TOPIC}`, `{QOS}` and `{RETAIN}` are as with `mqtt`. A user property that is called like one of the others is ignored; of
several with one name the last one applies.
""",
    outcomes=OUTCOMES,
    limits=(
        Limit("how long the broker keeps a session after its link is gone", f"{SESSION_EXPIRY} s"),
        Limit("unacknowledged deliveries, at which the broker holds back", str(IN_FLIGHT)),
        Limit(
            "the largest packet (Maximum Packet Size)",
            f"`limits.payload` and {PACKET_ROOM >> 10} KiB; the broker drops a larger one without an error to its sender",
        ),
    ),
    notes=(
        Note(
            "Several clients",
            """\
The clients of a connection (`clientCount`) share their subscriptions in a group that is called like the connection: each
message comes to one of them. Their client ids are the client id with `_0`, `_1` and so on behind it. If a broker has no
shared subscriptions, only the first client subscribes; the others only publish, and the status reports it. Which client gets
a message is the broker's choice, so it promises no order between two messages of one sender, not even on one topic; and what
is for a client whose link is gone waits for that client, for as long as its session is kept. Retained messages are not
delivered through shared subscriptions. `consumerCount` changes nothing: a source has one subscription for each client.
""",
        ),
        Note(
            "Several sources",
            """\
Each source's subscription has a number, so that a message which comes once for each of two sources is not handled twice by
both.
""",
        ),
    ),
)

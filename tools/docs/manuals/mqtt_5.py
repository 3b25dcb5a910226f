"""The manual of the connection type MQTT 5."""

from __future__ import annotations

from connectivity.transports.mqtt.connector import SESSION_EXPIRY
from connectivity.transports.mqtt.link import IN_FLIGHT
from connectivity.transports.mqtt.mqtt5 import BINARY, CONTENT_TYPE, CORRELATION, EXPIRY, REPLY_TO
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
        HeaderRule(
            EXPIRY,
            "the seconds until the message expires",
            "the seconds until the message expires; 0: the message does not expire",
        ),
        HeaderRule("any other", "the user property of this name", "a user property, unless it is blank"),
    ),
    header_rules=f"""\
`{TOPIC}`, `{QOS}` and `{RETAIN}` are as with `mqtt`. The service ignores a user property with the name of another header in
this table. If several user properties have the same name, the last one applies. In headers of a message to send, U+FFFD
replaces each character that MQTT does not allow, such as a line break; a `reply-to` that is not a topic is not sent.

Correlation data that is not UTF-8, or that could be confused with it, is the `correlation-id` `{BINARY}` followed by base64,
with `-` and `_` in place of `+` and `/`: for example `{BINARY}AP_7`. A message with such a `correlation-id` is sent with
these bytes, so a response returns them.
""",
    outcomes=OUTCOMES,
    limits=(
        Limit(
            "how long the broker keeps a session after its link is gone",
            f"{SESSION_EXPIRY} s; with `cleanSession`, not at all",
        ),
        Limit("unacknowledged deliveries, at which the broker sends no more", str(IN_FLIGHT)),
        Limit(
            "the largest packet (Maximum Packet Size)",
            f"`limits.payload` plus {PACKET_ROOM >> 10} KiB; the broker drops a larger one without an error to its sender",
        ),
    ),
    notes=(
        Note(
            "Several clients",
            """\
The clients of a connection (`clientCount`) share their subscriptions in a group that has the name of the connection: the
broker sends each message to one of them. An address such as `$share/depot/fleet/+/cmd` names another group. Each client id
is the configured client id followed by `_0`, `_1` and so on. If a broker has no shared subscriptions, only the first client
subscribes, and the others only publish. The status reports this.
The broker chooses the client for each message, so two messages of one sender may arrive in another order, even on the same
topic. Messages for a client without a link wait until that client reconnects, as long as the broker keeps its session.
Retained messages are not delivered through shared subscriptions. `consumerCount` has no effect: a source has one
subscription for each client.

Clients that no longer exist after a change of `clientCount` end their [sessions](#sessions). If the connection has no link
at that time, the broker keeps those sessions for 60 s, with their share of the messages, and then deletes both.
""",
        ),
        Note(
            "Several sources",
            """\
Subscriptions have numbers (the MQTT subscription identifiers). If several topic filters match a message, of one source or of
several, the broker may deliver it once per filter; with these numbers, each source handles the message once, or once for
each of its shared subscriptions if no other address of the source matches.

A session also keeps the subscriptions of earlier documents. After a change of the addresses of a source, the service may
handle twice the first message of each topic on a link, and those that the broker delivers again.
""",
        ),
    ),
)

"""The manual of the connection type MQTT 3.1.1."""

from __future__ import annotations

from connectivity.transports.mqtt.link import IN_FLIGHT, MAX_UNACKNOWLEDGED, STALLED_SECONDS, WINDOW
from connectivity.transports.mqtt.mqtt311 import MAX_LEVELS, QOS, RETAIN, TOPIC
from tools.docs.manual import AddressForm, HeaderRule, Limit, Manual, Note, Outcomes

OUTCOMES = Outcomes(
    settled="it is acknowledged",
    again="the service does not acknowledge it, so the broker delivers it again on the next link, marked as a "
    "duplicate; with `reconnectForRedelivery`, the service opens a new link soon",
    dropped="it is acknowledged",
)
MANUAL = Manual(
    family="MQTT",
    title="MQTT 3.1.1",
    introduction="MQTT 3.1.1, for devices: messages have no headers, so a command's payload must contain everything.",
    example="examples/connections/devices.yaml",
    addresses=(
        AddressForm("source", "topic filter", "all topics that match the filter", "fleet/+/cmd"),
        AddressForm(
            "target, reply-target", "topic", "clients that have subscribed to this topic", "fleet/{{ thing:name }}/res"
        ),
    ),
    address_rules="""\
A message goes to every source that has a matching topic filter. With MQTT 3.1.1, a broker may deliver a message once for
each matching filter, and the service cannot distinguish copies from new messages: it handles each of them. Mosquitto
delivers such a message once, but RabbitMQ delivers it twice if the filters have QoS 0 and QoS 1. So the filters of a
connection should not overlap.
""",
    headers=(
        HeaderRule(TOPIC, "the topic of the message", "the topic, instead of the address"),
        HeaderRule(QOS, "the QoS of the message", "the QoS, instead of that of the source or target"),
        HeaderRule(
            RETAIN,
            "`true` if the broker had retained the message",
            "`true`: the broker retains the message for later subscribers",
        ),
        HeaderRule("any other", "none", "is dropped"),
    ),
    header_rules="To set these headers in messages that the service sends, use a header mapping.",
    outcomes=OUTCOMES,
    settling_rules=f"""\
The service acknowledges deliveries in the order of arrival. So a delivery that waits also delays the acknowledgements of
later deliveries. When the number of unacknowledged deliveries reaches the broker's limit, the broker sends no more messages
to this connection. After {MAX_UNACKNOWLEDGED} requeued deliveries, the service reconnects, even without
`reconnectForRedelivery`. A broker may have a lower limit: so unless `cleanSession` is `true`, the service also reconnects
when no delivery has arrived for {STALLED_SECONDS:g} seconds since one was requeued. With QoS 0, there are no
acknowledgements and no redeliveries.

Packet identifier and payload identify a delivery within a session. If the broker has not kept the session, all deliveries
are new, and the service forgets the earlier ones. If the store is unavailable at that time, new deliveries wait until it is
available; if the service is stopped before that, it does not forget the earlier ones.

Within a session, a broker can use an identifier again. If it uses it for a command with the same payload as the last change
with this identifier, and the link is lost before this command arrives, the service takes it for a redelivery of that
change. The same can happen with a change that was not forgotten. To prevent this, give each command its own
`correlation-id`.

With QoS 2 the service sends PUBREC only when it settles the delivery: until then, the broker delivers the message again
after a lost link. For `journal.redelivery_window`, the service recognizes a redelivered change: it answers the command, but
does not execute it again. A live message may be forwarded twice if the link is lost before PUBREC has reached the broker.
""",
    limits=(
        Limit(
            "deliveries in progress",
            f"{IN_FLIGHT}, or the broker's limit of unacknowledged messages if it is lower; for Mosquitto, it is 20 by "
            "default (`max_inflight_messages`)",
        ),
        Limit(
            "a larger payload than `limits.payload`",
            "the service skips it while it arrives, returns the error 413 if the reply address does not depend on "
            "the payload, and acknowledges the message",
        ),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit("levels of a topic to publish to", f"{MAX_LEVELS}; Mosquitto closes the link upon a message with more"),
        Limit(
            "clients of a connection",
            "one, because MQTT 3.1.1 has no shared subscriptions; with `separatePublisherClient`, one more",
        ),
    ),
    notes=(
        Note(
            "Sessions",
            """\
Unless `cleanSession` is `true`, the broker keeps a session for each client: while the client is away, the broker keeps the
messages with QoS 1 and 2 for it.

A client does not come back if the connection is deleted, or changed to another `clientId`, `clientCount` or broker, and no
other connection to the same host and port has its client ID. It then unsubscribes, handles the messages that the broker has
kept for it, and ends its session; this takes at most 10 s. Before that, a new client subscribes, so that no message is lost;
at another address of the same broker, it takes over the session. If the two do not share a subscription, the service may
handle twice a message that arrives at that moment. Give each connection its own client ID, even if two connections use
different addresses of one broker: a broker knows a session by its client ID, so they would take the session from each other.

This requires a link; if it is lost meanwhile, or renewed so that the broker redelivers what was requeued, the client
continues with the next one. If there is no link, if the new client cannot connect, or if 10 s are not enough, the session
remains at the broker, with its messages; the service logs `session not ended` with the client ID. The session also remains,
without such a log entry, if the document is changed or deleted while the connection is closed or the service is stopped, or
if the service is killed meanwhile. If the client ID is used again, the service handles the messages.
""",
        ),
        Note(
            "Retained messages",
            """\
Do not publish commands with the retain flag: a broker delivers a retained message for every new subscription, so the
service would execute the command each time it connects.
""",
        ),
    ),
)

"""What the documentation says about the connection type MQTT 3.1.1."""

from __future__ import annotations

from connectivity.transports.mqtt.connector import WINDOW
from connectivity.transports.mqtt.link import IN_FLIGHT, MAX_UNACKNOWLEDGED
from connectivity.transports.mqtt.mqtt311 import QOS, RETAIN, TOPIC
from tools.docs.manual import AddressForm, HeaderRule, Limit, Manual, Note, Outcomes

OUTCOMES = Outcomes(
    settled="it is acknowledged",
    again="it is not acknowledged, so the broker delivers it again on the next link, marked as a duplicate; "
    "`reconnectForRedelivery` opens a new link soon",
    dropped="it is acknowledged",
)
MANUAL = Manual(
    family="MQTT",
    title="MQTT 3.1.1",
    introduction="MQTT 3.1.1, for devices: messages have no headers, so a command's payload must contain everything.",
    example="examples/connections/devices.yaml",
    addresses=(
        AddressForm("source", "topic filter", "all topics that it matches", "fleet/+/cmd"),
        AddressForm(
            "target, reply-target", "topic", "clients that have subscribed to it", "fleet/{{ thing:name }}/res"
        ),
    ),
    address_rules="A message goes to every source that has a matching topic filter.",
    headers=(
        HeaderRule(TOPIC, "where it arrived", "takes the place of the address"),
        HeaderRule(QOS, "the QoS it came with", "takes the place of the source's or target's"),
        HeaderRule(RETAIN, "whether the broker had kept it", "`true`: the broker keeps it for later subscribers"),
        HeaderRule("any other", "there is none", "is dropped"),
    ),
    header_rules="To set these headers in messages that the service sends, use a header mapping.",
    outcomes=OUTCOMES,
    settling_rules=f"""\
The service acknowledges deliveries in the order of arrival. So a delivery that waits also delays the acknowledgements of
later deliveries. When the number of unacknowledged deliveries reaches the broker's limit, the broker sends no more messages
to this connection. After {MAX_UNACKNOWLEDGED} requeued deliveries, the service reconnects, even without
`reconnectForRedelivery`. The packet identifier identifies a delivery. With QoS 0, there are no acknowledgements and no
redeliveries.

With QoS 2 the service sends PUBREC only when it settles the delivery: until then, the broker delivers the message again
after a lost link. For `journal.redelivery_window`, the service recognizes a redelivered change: it answers the command, but
does not execute it again. A live message may be forwarded twice if the link is lost before PUBREC has reached the broker.
""",
    limits=(
        Limit(
            "deliveries in progress",
            f"{IN_FLIGHT}, or as many as the broker sends unacknowledged: Mosquitto 20 (`max_inflight_messages`)",
        ),
        Limit(
            "a larger payload than `limits.payload`",
            "skipped while it arrives, answered with 413 if the reply address needs nothing of the payload, and "
            "acknowledged",
        ),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit(
            "clients of a connection",
            "one, since this version cannot share subscriptions; with `separatePublisherClient` one more",
        ),
    ),
    notes=(
        Note(
            "Retained messages",
            """\
Do not publish commands with the retain flag: a broker delivers a retained message for every new subscription, so the
service would execute the command each time it connects.
""",
        ),
    ),
)

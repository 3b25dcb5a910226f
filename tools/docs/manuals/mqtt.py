"""What the documentation says about the connection type MQTT 3.1.1."""

from __future__ import annotations

from connectivity.transports.mqtt.connector import WINDOW
from connectivity.transports.mqtt.link import IN_FLIGHT, MAX_UNACKNOWLEDGED
from connectivity.transports.mqtt.mqtt311 import QOS, RETAIN, TOPIC
from tools.docs.manual import AddressForm, HeaderRule, Limit, Manual, Note, Outcomes

OUTCOMES = Outcomes(
    settled="it is acknowledged",
    again="it is not acknowledged, so it comes again on the next link, with a mark; `reconnectForRedelivery` makes the next "
    "link come soon",
    dropped="it is acknowledged",
)
MANUAL = Manual(
    family="MQTT",
    title="MQTT 3.1.1",
    introduction="MQTT 3.1.1, for devices: messages carry no headers, so what a command has to say stands in its payload.",
    example="examples/connections/devices.yaml",
    addresses=(
        AddressForm("source", "topic filter", "all topics that it matches", "fleet/+/cmd"),
        AddressForm(
            "target, reply-target", "topic", "clients that have subscribed to it", "fleet/{{ thing:name }}/res"
        ),
    ),
    address_rules="A message goes to every source one of whose filters matches.",
    headers=(
        HeaderRule(TOPIC, "where it arrived", "takes the place of the address"),
        HeaderRule(QOS, "the QoS it came with", "takes the place of the source's or target's"),
        HeaderRule(RETAIN, "whether the broker had kept it", "`true`: the broker keeps it for later subscribers"),
        HeaderRule("any other", "there is none", "is dropped"),
    ),
    header_rules="To set them in messages that the service sends, use a header mapping.",
    outcomes=OUTCOMES,
    settling_rules=f"""\
Acknowledgements go in the order of arrival, so a delivery that waits for others holds back those behind it: once the
broker has sent as many as it may, it sends nothing more to this connection. When {MAX_UNACKNOWLEDGED} deliveries were
requeued, the service reconnects, also without `reconnectForRedelivery`. A delivery is named by its packet identifier.
With QoS 0 there is nothing to acknowledge and nothing comes again.

With QoS 2 the service acknowledges a delivery with PUBREC, and only when it is settled: until then the broker delivers it
again after a lost link. For `journal.redelivery_window`, a redelivered change is recognized: it is answered, and not
carried out twice. A live message may be forwarded twice if the link is lost before PUBREC has reached the broker.
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
Do not publish commands with the retain flag: a broker delivers a retained message at every new subscription, so the command
would be carried out again each time the service connects.
""",
        ),
    ),
)

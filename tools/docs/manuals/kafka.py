"""What the documentation says about the connection type Kafka."""

from __future__ import annotations

from connectivity.transports.base import MOST_WAITING
from connectivity.transports.kafka.consumer import IN_FLIGHT
from connectivity.transports.kafka.link import REPAIR_SECONDS, WINDOW
from connectivity.transports.kafka.records import SENDER
from tools.docs.manual import AddressForm, Fault, HeaderRule, Limit, Manual, Note, Outcomes

MANUAL = Manual(
    family="Kafka",
    title="Kafka",
    introduction="""\
The brokers to begin with are the one of the `uri` and those of `bootstrapServers`; the path of the `uri` is ignored. User
name and password in the `uri` log in by SASL. There is no tunnel to Kafka, since its brokers name each other's addresses.
""",
    example="examples/connections/analytics.json",
    addresses=(
        AddressForm("source", "topic", "the topic of this name", "analytics.ask"),
        AddressForm("target, reply-target", "topic", "any partition of the topic", "analytics.answers"),
        AddressForm("target, reply-target", "topic/key", "the partition that the key has", "answers/{{ entity:id }}"),
        AddressForm("target, reply-target", "topic#partition", "this partition", "answers#0"),
    ),
    address_rules="""\
A topic has 1 to 249 letters, digits, `.`, `_`, `-`, and is not `.` or `..`. Topics of sources have no placeholders and
must exist; in other addresses, every part can contain placeholders. The first `/` separates the key; in an address without
`/`, the first `#` separates the partition, a whole number. Neither may be empty in a document. If the placeholders of a key
resolve to an empty text, the address is used without the key.
""",
    headers=(
        HeaderRule("kafka.topic", "the record's topic", "a record header"),
        HeaderRule("kafka.key", "the record's key, if there is one", "a record header"),
        HeaderRule("kafka.timestamp", "when it was made, in milliseconds", "a record header"),
        HeaderRule("correlation-id", "the record header, else a new one", "a record header"),
        HeaderRule(
            "creation-time, ttl", "in milliseconds: a record whose time is over is passed over", "record headers"
        ),
        HeaderRule(SENDER, "a record header", "the connection that publishes"),
        HeaderRule("any other", "a record header", "a record header"),
    ),
    header_rules="A record without a value has an empty payload. An enforcement's input can only be a header.",
    outcomes=Outcomes(
        settled="its offset is committed when it and all before it in its partition are settled or dropped",
        again="it is read again after a pause, with everything behind it",
        dropped="as settled",
    ),
    settling_rules="""\
This table applies if the source has `qos` 1 (at least once). With 0 or none, the offset is committed as soon as the
record is received (at most once). A delivery is identified by topic id, partition and offset. Kafka does not mark
redeliveries. The service marks records that were there before this link got their partition, or that it had already.
The outcome of a change is known until its offset is committed, however long the service was down, and for
`journal.redelivery_window` in any case.
""",
    limits=(
        Limit("deliveries in progress", f"{IN_FLIGHT}; then partitions are paused"),
        Limit("settled deliveries behind one that is in progress", f"{MOST_WAITING:,}; then partitions are paused"),
        Limit("the largest record", "the topic's `max.message.bytes`, since a batch is always fetched whole"),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit(
            "interruptions that are bridged without a new link; meanwhile the status gives the reason",
            f"shorter than {REPAIR_SECONDS:.0f} s",
        ),
    ),
    faults=(
        Fault(
            "a source's topic is missing, or is deleted",
            "status `missing address`; the connection goes on when it has been made",
        ),
        Fault("a record is larger than the topic takes", "the message fails, the others do not"),
    ),
    notes=(
        Note(
            "Group and order",
            """\
A connection is a member of its group, known by its id, so it has its partitions back at once after a crash; another
service with the same connection takes its place. A group without offsets begins where `consumerOffsetReset` says;
partitions that are made later are read from their beginning.

Each client (`clientCount`), and each consumer of a client (`consumerCount`), is a member of its own; Kafka parts the
partitions among them, so more members than partitions are of no use. One member reads a partition at a time, so its records
keep their order; give an entity's commands one key. When a document wants fewer members than before, those that are gone
keep their partitions for ten seconds. `throttlingLimit` applies to each client.

Records are published once and in order, acknowledged by all in-sync replicas. A record whose address names no key has
the ID of its subscription as the key, or that of its entity, so that a topic with several partitions keeps their order.
""",
        ),
    ),
    example_uri="ssl://fleet:${env:BROKER_PASSWORD}@kafka-1.acme.example:9093",
)

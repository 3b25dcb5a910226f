"""The manual of the connection type Kafka."""

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
The first brokers to contact are the broker in the `uri` and those in `bootstrapServers`. The service ignores the path of
the `uri`. The service logs in by SASL, with user name and password from the `uri`. Kafka connections cannot use a tunnel,
because Kafka's brokers tell clients the addresses of other brokers.
""",
    example="examples/connections/analytics.json",
    addresses=(
        AddressForm("source", "topic", "the topic of this name", "analytics.ask"),
        AddressForm("target, reply-target", "topic", "any partition of the topic", "analytics.answers"),
        AddressForm(
            "target, reply-target",
            "topic/key",
            "the partition that Kafka selects by the key",
            "answers/{{ entity:id }}",
        ),
        AddressForm("target, reply-target", "topic#partition", "this partition", "answers#0"),
    ),
    address_rules="""\
A topic has 1 to 249 letters, digits, `.`, `_`, `-`, and is not `.` or `..`. Topics of sources have no placeholders and must
exist; in other addresses, every part can contain placeholders. The first `/` separates the key; in an address without `/`,
the first `#` separates the partition, a whole number. In a document, key and partition must not be empty. If the
placeholders of a key resolve to an empty text, the address is used without the key. A key may be any text without control
characters, such as the ID `acme.site:pump#1` of a thing; the checks of [reply addresses](sources.md#reply-addresses) apply
to topic and partition.
""",
    headers=(
        HeaderRule("kafka.topic", "the record's topic", "a record header"),
        HeaderRule("kafka.key", "the record's key, if there is one", "a record header"),
        HeaderRule("kafka.timestamp", "the record's timestamp, in milliseconds since 1970", "a record header"),
        HeaderRule("correlation-id", "the record header, or else a new ID", "a record header"),
        HeaderRule(
            "creation-time, ttl",
            "record headers, in milliseconds: the service ignores a record if its `ttl` has passed since its "
            "`creation-time`",
            "record headers",
        ),
        HeaderRule(SENDER, "a record header", "the ID of the connection that publishes"),
        HeaderRule("any other", "a record header", "a record header"),
    ),
    header_rules="A record without a value has an empty payload. An enforcement's input can only be a header.",
    outcomes=Outcomes(
        settled="the service commits its offset when it and all earlier deliveries of its partition are acknowledged "
        "or rejected",
        again="the service reads it again after a pause, with all later records of its partition",
        dropped="the same as for an acknowledged delivery",
    ),
    settling_rules="""\
This table applies if the source has `qos` 1 (at least once). With `qos` 0, or without `qos`, the service commits the offset
as soon as it receives the record (at most once). A delivery is identified by topic id, partition and offset. Kafka does not
mark redeliveries. So the service treats two kinds of records as possible redeliveries: records that were in the partition
before this link got the partition, and records that the service has already received. The service remembers the outcome of
a change until the offset is committed, however long the service was down, and for at least `journal.redelivery_window`.
""",
    limits=(
        Limit("deliveries in progress", f"{IN_FLIGHT}; at this number, the service pauses partitions"),
        Limit(
            "settled deliveries behind one that is in progress",
            f"{MOST_WAITING:,}; at this number, the service pauses partitions",
        ),
        Limit(
            "the largest batch of records",
            "the topic's `max.message.bytes`, since a batch is always fetched and decompressed whole; see "
            "[compressed records](#compressed-records)",
        ),
        Limit("messages that wait for the broker's confirmation", str(WINDOW)),
        Limit(
            "an interruption after which the client continues without a new link; meanwhile the status gives the "
            "reason",
            f"shorter than {REPAIR_SECONDS:.0f} s",
        ),
    ),
    faults=(
        Fault(
            "a source's topic is missing, or is deleted",
            "status `missing address`; the connection continues when the topic exists",
        ),
        Fault(
            "a source's topic is deleted and created again at once",
            "the client reconnects within seconds, and reads the new topic from its beginning; records that it has read of "
            "the new topic before it noticed this are executed twice",
        ),
        Fault(
            "records cannot be read: their batch is damaged, or the broker refuses to send them",
            "status `connected: records cannot be read` with the topic and the library's reason, and a log entry; the "
            "service tries again until it can read them, and reads the other partitions; to skip a damaged batch, close the "
            "connection and set the group's offset behind it",
        ),
        Fault(
            "the topic's retention deletes records before the service has read them",
            "a warning `records deleted before they were read` with their number; the service continues with the first "
            "record that exists",
        ),
        Fault(
            "a message is larger than its topic allows",
            "only this message fails; if the topic allows less than 128 KiB, smaller messages that are sent at the same "
            "time can fail with it, or together be too large",
        ),
        Fault(
            "the clock of the service is wrong by more than the topic allows (`message.timestamp.after.max.ms`, an hour)",
            "events of targets wait and are sent again until the clocks agree; responses are lost, and a log entry says so",
        ),
        Fault(
            "the broker sends responses that violate the Kafka protocol",
            "the client library reconnects, but after some responses it ends the process of the service: connect only to "
            "brokers that you trust",
        ),
    ),
    notes=(
        Note(
            "Compressed records",
            """\
The topic's `max.message.bytes` limits the compressed size of a batch. The service decompresses a batch whole, in memory:
with `gzip` and `lz4`, one batch of 1 MiB may become several hundred MiB. With `zstd`, a batch that decompresses to more
than 100 MB (sometimes already from 34 MB on) cannot be read. The service skips the records of such a batch one by one,
answers each with the error 413 if the reply address does not depend on the record, and continues after them.

If you do not trust everyone who can write to a topic, set the topic's `compression.type` to `uncompressed`: then the broker
decompresses batches, and refuses those that are larger than `max.message.bytes`.
""",
        ),
        Note(
            "Group and order",
            """\
A connection joins its consumer group as a static member with the connection's id. So it gets its partitions back
immediately after a crash, and another service with the same connection takes its place. For a group without offsets,
`consumerOffsetReset` sets the start. The service reads partitions that are created later from their beginning, even if they
were created while it was not connected.

Each client (`clientCount`), and each consumer of a client (`consumerCount`), is a separate member of the group. Kafka
distributes the partitions among the members, so members beyond the number of partitions have no effect. Only one member
reads a partition at a time, so the partition's records keep their order. Give all commands of an entity the same key. When
you reduce the number of members, the removed members keep their partitions for ten seconds. `throttlingLimit` applies to
each client.

The service publishes each record once and in order, and all in-sync replicas acknowledge it. If an address has no key, the
record's key is the ID of the subscription or, without a subscription, the ID of the entity. So events stay in order in a
topic with several partitions.

The client library remembers every topic that it has published to. After 1,000 topics the service starts another producer
and ends the former one when its records are confirmed; up to five producers of a client may be connected meanwhile.
""",
        ),
    ),
    example_uri="ssl://fleet:${env:BROKER_PASSWORD}@kafka-1.acme.example:9093",
)

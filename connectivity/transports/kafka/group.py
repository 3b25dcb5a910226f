"""Finds partitions that were created after a group's start, and assignments that are out of date.

A static member that is back within its session timeout gets its former partitions without a rebalance, even if partitions
were created or its topics have changed meanwhile (KIP-345). The library does not notice that.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

RESPONSE_TIMEOUT = 10.0
COORDINATOR_TIMEOUT, COORDINATOR_POLL = 20.0, 0.1
"""Seconds until the group must have a coordinator, and between two requests.

Before the first group of a cluster, its brokers create a topic for offsets.
"""

NO_COORDINATOR = (
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
)

Key = tuple[str, int]


def later_partitions(consumer: Consumer, known: Iterable[Key]) -> set[Key]:
    """Return the known partitions of the topics that the group has read. Raises KafkaException.

    Those without an offset were created later: the group commits an offset of each partition at the start. Offsets without
    the ID of a topic are those of another program, which may have committed only some.
    """
    known = set(known)
    places = _committed(consumer, [TopicPartition(*key) for key in known])
    read = {place.topic for place in places if place.error is None and place.offset >= 0 and place.metadata}
    return {key for key in known if key[0] in read}


def _committed(consumer: Consumer, places: list[TopicPartition]) -> list[TopicPartition]:
    """Return the group's offsets, as soon as it has a coordinator. Raises KafkaException."""
    end = time.monotonic() + COORDINATOR_TIMEOUT
    while True:
        try:
            return consumer.committed(places, COORDINATOR_TIMEOUT)
        except KafkaException as failure:
            if failure.args[0].code() not in NO_COORDINATOR or time.monotonic() > end:
                raise
            time.sleep(COORDINATOR_POLL)


def is_out_of_date(admin: AdminClient, group: str, topics: Collection[str], places: Collection[TopicPartition]) -> bool:
    """Return whether partitions were created, or topics have changed, since the group's assignment.

    `topics`: those of this member. `places`: the partitions assigned to this member. Raises KafkaException, TimeoutError.
    """
    own = {(place.topic, place.partition) for place in places}
    if any(topic not in topics for topic, _ in own):
        return True
    described = admin.describe_topics(TopicCollection(list(topics)))
    free = {
        (topic, partition.id)
        for topic, future in described.items()
        for partition in future.result(RESPONSE_TIMEOUT).partitions
    } - own
    if not free:
        return False
    try:
        found = admin.describe_consumer_groups([group])[group].result(RESPONSE_TIMEOUT)
    except KafkaException:
        return False  # a cluster may keep its groups secret
    for member in found.members:
        free -= {(place.topic, place.partition) for place in member.assignment.topic_partitions}
    # In another state, members are joining, and all partitions are assigned again.
    return bool(free) and found.state is ConsumerGroupState.STABLE

"""Finds offsets, partitions created after a group's start, and assignments that are out of date.

A static member that is back within its session timeout gets its former partitions without a rebalance, even if partitions
were created or its topics have changed meanwhile (KIP-345). The library does not notice that.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from ctypes import py_object, pythonapi
from sys import getrefcount
from types import SimpleNamespace
from typing import TypeVar

from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec, TopicDescription  # type: ignore[attr-defined]

RESPONSE_TIMEOUT = 10.0
RETRY_DELAY = 0.1
"""Seconds until a request that failed for a moment is sent again."""

COORDINATOR_TIMEOUT = 20.0
"""Seconds until the group must have a coordinator.

Before the first group of a cluster, its brokers create a topic for offsets.
"""

NO_COORDINATOR = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}

LEADER_CHANGES = {
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
}
"""Errors while the leader of a partition changes, or has changed since the library asked for it."""

_TOPIC_ID = re.compile(r"[A-Za-z0-9+/]{21}[AQgw]")
"""16 bytes in base64, as the client library writes them."""

T = TypeVar("T")

Key = tuple[str, int]


def committed_topic_id(place: TopicPartition) -> str | None:
    """Return the ID of the topic of a committed offset; None if another program has committed it."""
    return place.metadata if place.metadata and _TOPIC_ID.fullmatch(place.metadata) else None


def described_topic_id(described: TopicDescription) -> str:
    """Return the ID of a topic, and drop the reference to it that the library (2.16) never drops."""
    if _references(described) > _WITHOUT_THE_LIBRARY:
        pythonapi.Py_DecRef(py_object(described.topic_id))
    return str(described.topic_id)


def _references(described: TopicDescription | SimpleNamespace) -> int:
    id = described.topic_id
    return getrefcount(id)


_WITHOUT_THE_LIBRARY = _references(SimpleNamespace(topic_id=object()))


def later_partitions(consumer: Consumer, known: Iterable[Key]) -> set[Key]:
    """Return the known partitions of the topics that the group has read. Raises KafkaException.

    Those without an offset were created later: the group commits an offset of each partition at the start. Offsets without
    the ID of a topic are those of another program, which may have committed only some.
    """
    known = set(known)
    wanted = [TopicPartition(*key) for key in known]
    places = _retried(lambda: consumer.committed(wanted, COORDINATOR_TIMEOUT), NO_COORDINATOR, COORDINATOR_TIMEOUT)
    read = {place.topic for place in places if place.error is None and place.offset >= 0 and committed_topic_id(place)}
    return {key for key in known if key[0] in read}


def list_offsets(
    admin: AdminClient, places: Iterable[TopicPartition], spec: OffsetSpec, **options: IsolationLevel
) -> dict[Key, int]:
    """Return the first or next offset of each partition; block, and ask again while leaders change.

    Raises KafkaException, TimeoutError.
    """
    wanted = {TopicPartition(place.topic, place.partition): spec for place in places}

    def request() -> dict[Key, int]:
        answers = admin.list_offsets(wanted, **options)
        return {(it.topic, it.partition): answer.result(RESPONSE_TIMEOUT).offset for it, answer in answers.items()}

    return _retried(request, LEADER_CHANGES, RESPONSE_TIMEOUT)


def _retried(request: Callable[[], T], temporary: Collection[int], seconds: float) -> T:
    """Return the result of a blocking request, repeated for so long while it fails with a temporary error."""
    until = time.monotonic() + seconds
    while True:
        try:
            return request()
        except KafkaException as failure:
            if failure.args[0].code() not in temporary or time.monotonic() >= until:
                raise
        time.sleep(RETRY_DELAY)


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

"""One partition as long as it is ours: what was taken from it, what has ended, from where it would be read again.

Kafka keeps one number for a group and a partition, the offset to go on from, and it may only move over what is done. And it
has no mark for what comes again. So a record counts as redelivered if it may have been seen before: if it was there already
when the partition was assigned (whoever had it before can have read up to that point and no further), or if this link has
handed it over before. This is the safe choice: with topic id, partition and offset the name of a record is its own
for ever, so a record that is marked and was never seen is simply not known.
"""

from __future__ import annotations

from typing import Protocol

from connectivity.transports.base import Delivery, InOrderSettlement, Outcome, SharedDelivery


class PartitionOwner(Protocol):
    """The consumer that has a partition."""

    def has_ended(self, count: int) -> None: ...
    def read_again(self, partition: Partition) -> None: ...


FIRST_DELAY, LONGEST_DELAY = 0.1, 60.0


class PartitionDelivery(Delivery):
    """A delivery that knows where it is from, and its part if several sources share it."""

    __slots__ = ("offset", "partition", "shared")

    partition: Partition
    offset: int
    shared: SharedDelivery[PartitionDelivery] | None


class Partition:
    """Belongs to the loop. The consumer's thread reads `settled`, keeps `stored`, and clears `is_ours` when it has to give
    the partition away."""

    __slots__ = (
        "is_at_least_once",
        "is_ours",
        "known_below",
        "number",
        "open",
        "owner",
        "rejections",
        "settled",
        "stored",
        "topic",
        "topic_id",
        "watermark",
    )

    def __init__(
        self,
        owner: PartitionOwner,
        topic: str,
        number: int,
        topic_id: str,
        start: int,
        known_below: int,
        *,
        is_at_least_once: bool,
    ) -> None:
        """`start`: the offset to begin with, or a negative one that the client library knows. `known_below`: records below
        this offset may have been seen before."""
        self.owner = owner
        self.topic, self.number, self.topic_id = topic, number, topic_id
        self.settled = self.stored = start
        self.known_below = known_below
        self.is_at_least_once = is_at_least_once
        self.is_ours = True
        self.open = 0
        self.rejections = 0
        self.watermark = InOrderSettlement()

    def __repr__(self) -> str:
        return f"<Partition {self.topic}[{self.number}] settled {self.settled}, {self.open} open>"

    def name_of(self, offset: int) -> str:
        return f"kafka:{self.topic_id}/{self.number}/{offset}"

    def arrived(self, delivery: PartitionDelivery) -> None:
        self.open += 1
        if self.is_at_least_once:
            self.watermark.arrived(delivery)
        else:
            self.settled = delivery.offset + 1

    def ended(self, delivery: PartitionDelivery, outcome: Outcome) -> bool:
        """Note an outcome. False: a record is to come again, and everything behind it with it."""
        self.open -= 1
        if self.is_at_least_once:
            for ended, ending in self.watermark.ended(delivery, outcome):
                if ending is Outcome.REDELIVER:
                    return False
                assert isinstance(ended, PartitionDelivery)
                self.settled = ended.offset + 1
                self.rejections = 0
        return True

    @property
    def delay(self) -> float:
        """Seconds until the records are read again."""
        return min(FIRST_DELAY * 2.0**self.rejections, LONGEST_DELAY)

    def again(self) -> Partition:
        """This partition, to be read again from the first record that is not done."""
        fresh = Partition(
            self.owner,
            self.topic,
            self.number,
            self.topic_id,
            self.settled,
            self.known_below,
            is_at_least_once=self.is_at_least_once,
        )
        fresh.stored = self.stored
        fresh.rejections = self.rejections + 1
        return fresh

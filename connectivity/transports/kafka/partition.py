"""The state of one assigned partition: records taken, records ended, and where to read again.

Kafka stores one offset for each group and partition, which may only move past settled records, and has no redelivery
flag. So a record is marked as redelivered if it may have been seen before: if it existed when the partition was
assigned, or if this link has delivered it before. This is safe: topic ID, partition and offset name a record uniquely,
so a marked record that was never seen is simply not found.
"""

from __future__ import annotations

from typing import Protocol

from connectivity.transports.base import Delivery, InOrderSettlement, Outcome, SharedDelivery


class PartitionOwner(Protocol):
    """The consumer that has a partition."""

    def has_ended(self, count: int, size: int, passed: int) -> None: ...
    def read_again(self, partition: Partition) -> None: ...


FIRST_DELAY, LONGEST_DELAY = 0.1, 60.0


class PartitionDelivery(Delivery):
    """A delivery with its partition, offset and size, and the shared one if several sources share it."""

    __slots__ = ("offset", "partition", "shared", "size")

    partition: Partition
    offset: int
    shared: SharedDelivery[PartitionDelivery] | None
    size: int


class Partition:
    """One assigned partition, used by the event loop.

    The consumer's thread reads `settled`, updates `stored`, and clears `is_assigned` when the partition is revoked.
    """

    __slots__ = (
        "is_assigned",
        "is_at_least_once",
        "number",
        "open",
        "open_bytes",
        "owner",
        "read_from",
        "rejections",
        "seen_below",
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
        seen_below: int,
        *,
        is_at_least_once: bool,
    ) -> None:
        """`start`: the first offset, or a negative one that the client library defines.

        `seen_below`: records below this offset may have been seen before.
        """
        self.owner = owner
        self.topic, self.number, self.topic_id = topic, number, topic_id
        self.settled = self.stored = start
        self.read_from = start
        """The offset that the consumer's thread reads next; used by the thread only."""
        self.seen_below = seen_below
        self.is_at_least_once = is_at_least_once
        self.is_assigned = True
        self.open = self.open_bytes = 0
        self.rejections = 0
        self.watermark = InOrderSettlement()

    @property
    def key(self) -> str:
        """The name of the partition, also after a topic with the name of a deleted one is created."""
        return f"{self.topic_id}/{self.number}"

    def name_of(self, offset: int) -> str:
        return f"kafka:{self.key}/{offset}"

    def arrived(self, delivery: PartitionDelivery) -> None:
        self.open += 1
        self.open_bytes += delivery.size
        if self.is_at_least_once:
            self.watermark.arrived(delivery)
        else:
            self.settled = delivery.offset + 1

    def ended(self, delivery: PartitionDelivery, outcome: Outcome) -> bool:
        """Record an outcome. Return False if a record, with all that follow it, is to be read again."""
        self.open -= 1
        self.open_bytes -= delivery.size
        if self.is_at_least_once:
            for ended, ending in self.watermark.ended(delivery, outcome):
                if ending is Outcome.REDELIVER:
                    return False
                assert isinstance(ended, PartitionDelivery)
                self.settled = ended.offset + 1
                self.rejections = 0
        return True

    @property
    def waiting(self) -> int:
        """The number of records that are unsettled, or wait for an earlier one."""
        return len(self.watermark.waiting) if self.is_at_least_once else self.open

    def clear(self) -> None:
        """Forget all records, after the partition was revoked, or to read them again."""
        self.open = self.open_bytes = 0
        self.watermark = InOrderSettlement()

    @property
    def delay(self) -> float:
        """Return the seconds until the records are read again."""
        return min(FIRST_DELAY * 2.0**self.rejections, LONGEST_DELAY)

    def again(self) -> Partition:
        """Return this partition, to be read again from the first unsettled record."""
        fresh = Partition(
            self.owner,
            self.topic,
            self.number,
            self.topic_id,
            self.settled,
            self.seen_below,
            is_at_least_once=self.is_at_least_once,
        )
        fresh.stored = self.stored
        fresh.rejections = self.rejections + 1
        return fresh

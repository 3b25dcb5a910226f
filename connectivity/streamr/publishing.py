"""Messages on their way into a stream (Streamr protocol, publish).

A message is the next event of its partition; it goes into the commit of its batch, and nothing is said when that is durable:
whoever follows the stream is sent it. What names the delivery is kept in the same commit, so that a message which the broker
brings again is not appended again. A client may name a message itself: the `idempotency-key` of a request, else its
`correlation-id`, stand for it within its session, for five minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from connectivity.store import Store
from mappings.streamr.entries import event_of
from mappings.streamr.instants import timestamp
from mappings.streamr.names import partition_of
from mappings.streamr.partitions import KeyHash
from mappings.streamr.partitions import partition_of as partition_of_key
from mappings.streamr.requests import Publish
from spark_store.records import Answer, Change, DeliveryName
from spark_store.replay import evolve

NAMED_SECONDS = 300
"""For so long a name that a client has chosen stands for its message."""


class Publishing:
    """Appends messages."""

    def __init__(self, store: Store, now: Callable[[], datetime]) -> None:
        self._store = store
        self._now = now

    def is_known(self, name: DeliveryName, *, is_chosen: bool) -> bool:
        """Whether the message with this name was appended before. `is_chosen`: by its client. Raises StoreUnavailable."""
        answer = self._store.answered(name)
        if answer is None:
            return False
        taken: float = msgspec.msgpack.decode(answer, type=float)
        return not is_chosen or self._now().timestamp() - taken < NAMED_SECONDS

    def append(
        self, request: Publish, partitions: int, hash: KeyHash, name: DeliveryName | None, changes: list[Change]
    ) -> None:
        """Stage a message in one of so many partitions, and add it to the changes of its batch. Raises StoreUnavailable."""
        partition = partition_of_key(request.key, partitions, hash)
        entity = partition_of(request.stream, partition)
        before = self._store.snapshot(entity)
        moment = self._now().timestamp()
        now = timestamp(int(moment * 1000))
        if before is not None:
            # Histories are in order of time, whatever the clock does.
            now = max(now, before.modified)
        event = event_of(request, partition, 1 if before is None else before.revision + 1, now)
        answer = Answer(name, msgspec.msgpack.encode(moment)) if name is not None else None
        change = Change((event,), (evolve(before, event),), answer)
        self._store.stage(change)
        changes.append(change)

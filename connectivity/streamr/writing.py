"""Events as the messages that sessions are sent, written once for all of them (Streamr protocol, message array).

What is sent live goes to many at about the same time, so the bytes of the last messages are kept. What else than the event
stands in a message, its predecessor, is looked at each time: it may not be named any more once it is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from connectivity.store import Store
from mappings.ids import EntityId, EntityType
from mappings.signals import Event
from mappings.streamr import twins
from mappings.streamr.entries import message_of
from mappings.streamr.messages import StreamMessage, predecessor, write_message

KEPT = 1000
"""So many written messages are kept."""


class _Written(NamedTuple):
    event: Event
    previous: int | None
    message: bytes


class Writing:
    """Writes messages."""

    def __init__(self, store: Store, kept: int = KEPT) -> None:
        self._store = store
        self._kept = kept
        self._written: OrderedDict[tuple[EntityId, int, int], _Written] = OrderedDict()

    def message(self, event: Event) -> StreamMessage:
        """The message that an event is, with the predecessor that a resend still brings. Raises StoreUnavailable."""
        oldest = self._store.oldest_kept(event.entity)
        if event.entity.type is not EntityType.STREAM:
            return twins.message_of(event, oldest=oldest)
        return message_of(event, previous=predecessor(event.revision - 1, oldest))

    def written(self, event: Event, version: int) -> bytes:
        """The same as an array, in one of the protocol's versions."""
        previous = predecessor(event.revision - 1, self._store.oldest_kept(event.entity))
        key = (event.entity, event.revision, version)
        known = self._written.get(key)
        if known is not None and known.event is event and known.previous == previous:
            return known.message
        message = write_message(self.message(event), version)
        self._written[key] = _Written(event, previous, message)
        if len(self._written) > self._kept:
            self._written.popitem(last=False)
        return message
